"""beside_experts: a layer's experts and its dense MLP and router beside each other, four launches for six."""
