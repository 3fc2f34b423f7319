"""How people write down that a server, or requests to it, stand: nothing comes, nobody is answered, it only waits."""

from __future__ import annotations

from gemma4_triage.logs.late_pattern import pattern

_SAYS = pattern(
    rb"(?i)\bhangs?\b(?! up\b)|\bhung\b(?! up\b)|\bhanging\b|\bstuck\b|\bfr(?:ozen|eezes)\b|\bdead-?locks?\b|"
    rb"\b(?:no|none of the) (?:\w+ ){0,2}(?:requests?|answers?|clients?|calls?)\b[^,;]{0,30}\b"
    rb"(?:answered|served|comes?|returns?)\b|"
    rb"\bnothing (?:is |was |gets |has been )?(?:ever )?(?:answered|returned|logged|printed|comes back)\b|"
    rb"\bnever (?:gets?|got|have|had|receives?) (?:an|any|its|their|the) (?:answer|reply|response)s?\b|"
    rb"\bnever (?:answers?|answered|returns?|returned|responds?|responded|comes? back|finish(?:es|ed)|opens)\b|"
    rb"\b(?:no longer|stop(?:s|ped)?|does not|doesn't|do not|don't) (?:answer|respond)(?:s|ing)?\b|"
    rb"/(?:health|generate|v1)\S* (?:times? out|timed out|does not answer)|\b(?:un|not )responsive\b|"
    rb"\bno (?:[\w-]+ ){0,3}lines? (?:ever |at all|after|follow|appears?\b|comes?\b|"
    rb"is (?:ever )?(?:printed|logged|written)\b)|\bno (?:progress|batch line)\b|"
    rb"\bnothing (?:more|comes|follows|happens)\b|\bthen nothing\s*(?:[:,;.]|$)|"
    rb"\b(?:server|request\w*|it|ranks?) stands\b(?! in the (?:prompt|text|answer|image))|"
    rb"\banswered any more\b|\bfor ever\b|"
    rb"\b(?:stays|sits|waits|remains) (?:here|there|like this)\b|"
    rb"\b(?:here|there) for (?:\d+|many|some) (?:minutes|hours)\b|"
    rb"\bnever (?:becomes|gets|is|was) ready\b|\bnever (?:starts|completes|gets past)\b|"
    rb"\bdoes not (?:go on|continue|proceed)\b|\bstands? still\b|\bnever (?:gets|comes) to\b|\bnever leaves\b|"
    rb"\bdoes not become (?:healthy|ready)\b|\breadiness probe (?:never|fails)\b|"
    rb"\b(?:loading|capturing|capture|compiling|progress(?: bar)?) stays at\b|"
    rb"\brequests? (?:\w+ )?(?:waits?|queues?) behind (?:it|that|this)\b|"
    rb"\b(?:client|request|curl)s? (?:\w+ )?waits? from here\b|\bwaits? until (?:its|their) .{0,16}timeout\b|"
    rb"\b(?:benchmark|request|call|curl|warm-?up|capture)\b.{0,50}\bnever ends?\b|"
    rb"\b(?:without|gets?|got) (?:no |any |an? )(?:answer|reply|response)(?:s|\b)(?! code)"
)
# One has to wait for the end of another, though both could run.
_TURN = pattern(
    rb"(?i)\b(?:first token|begins|starts|runs|is admitted|answered|prefilled|scheduled|waits)\b.{0,30}\b"
    rb"(?:only (?:when|after|once)|not before|until) (?:an?|one|the|some|all)\b(?: \w+){0,5}? "
    rb"(?:ended|finished|done|ends|finishes|end|finish|completes?)\b"
)
_DENIES = pattern(
    rb"(?i)\b(?:no|not|n't|nothing|never|without(?: a)?|instead of(?: a)?|no longer|any ?more) "
    rb"(?:hangs?\b|hung\b|hanging\b|stuck\b|frozen\b|freezes?\b|dead-?lock)|"
    rb"\bwith(?:out)? --\S+.{0,40}\b(?:fine|works?|ok|well|answers|good|starts?)\b|\bhangs? on\b|\bone client\b|"
    # Of answers, which then come; and of another try than this log's.
    rb"\banswers? (?:of|are|is)\b|\b(?:rubbish|garbage|nonsense|gibberish)\b|^#+ *(?:without|same|"
    # With such a request it is this server all the same.
    rb"(?:with|if)(?!(?: \S+){0,4} (?:prompts?|requests?|inputs?|contexts?|messages?|chunks?|clients?|images?|"
    rb"pictures?|videos?|schemas?|tokens?|users?)\b))\b"
)


_TIME = (
    rb"(?:(?:for |over |about |more than |at least )*(?:\d+|an?|half an|several|many|some|ten|twenty|thirty) ?"
    rb"(?:min(?:ute)?s?|hours?|h|seconds?|s)\b)"
)
_ANSWER = rb"(?:answers?|repl(?:y|ies)|responses?|results?|outputs?|tokens?|chunks?|bytes?|completions?)"
_ASKED = (
    rb"(?:requests?|prompts?|calls?|curls?|clients?|connections?|streams?|generations?|chats?|posts?|inputs?|"
    rb"questions?|batch(?:es)?|it|they)"
)
_NOT = rb"(?:does not|do not|doesn't|don't|did not|didn't|won't|will not|would not)"
_UNENDING = rb"(?:for ?ever|indefinitely|endlessly|without end|for good|with no end)"
# Each is one way of saying it: of the log, of answers, of those who ask, of the time that it takes, of the server.
_SAYS_TOO = pattern(
    rb"(?i)\bnothing (?:at all |else |more )?(?:after|behind|since|below|from|beyond) (?:this|that|here|it|then|now)\b|"
    rb"\bno (?:further |more |new |other |single )*(?:lines?|log lines?|logs?|entries|messages?|" + _ANSWER + rb") "
    rb"(?:\w+ )?(?:since|any ?more|whatsoever|from here|(?:ever )?(?:appears?|arrives?|follows?|comes?|came)|"
    rb"(?:for|after|within|in) " + _TIME + rb")|"
    rb"\bno (?:further|more|new) (?:lines?|log lines?|entries|" + _ANSWER + rb")\b|"
    rb"\bnot (?:a|one|even (?:a|one)|any)(?: single)? (?:token|byte|answer|reply|response|chunk)\b"
    rb"(?! (?:is|are|was|were) (?:wrong|right|lost|bad|good))|"
    rb"\b"
    + _ANSWER
    + rb" (?:\w+ )?(?:never|"
    + _NOT
    + rb") (?:\w+ )?(?:comes?|arrives?|appears?|shows? up|reach(?:es)?|"
    rb"gets? (?:here|back|through))\b|"
    rb"\b(?:gets?|got|receives?|received|hears?) (?:back )?nothing(?: back)?\b|"
    rb"\b(?:sees?|saw|receives?|received|have|has|had|there (?:is|was)) (?:still )?no (?:answer|reply|response)\b"
    rb"(?! code)|"
    rb"\b" + _ASKED + rb" (?:\w+ ){0,2}" + _NOT + rb" (?:\w+ )?(?:return|finish|end|complete|come back|terminate|get "
    rb"through|move)\b|"
    rb"\b(?:is|are|was|were|gets?|got) (?:simply |just )?(?:never|not) (?:\w+ )?(?:completed|scheduled|served|"
    rb"processed|picked up|dispatched|admitted|run|continued)\b|"
    rb"\bnever (?:arrives?|terminates?|resolves?|gets? through|sees? an?|ends? until)\b|"
    rb"\b(?:waits?|waiting|waited|hang\w*|pending|spins?|spinning|blocks?|blocked|stalls?|stalled|sits?|open|loads?|"
    rb"loading|runs?) (?:\w+ ){0,3}" + _UNENDING + rb"|"
    rb"\b(?:waited|waiting|pending|in flight|idle here|stands like this|sat there|gave up|killed it|cancelled(?: it)?|"
    rb"interrupted(?: it)?) (?:\w+ ){0,2}?(?:for |since |after )?"
    + _TIME
    + rb"(?! (?:and )?(?:then|until|before|between|"
    rb"for the (?:load|start|weights))\b)|"
    rb"\b(?:(?:logs?|output|console) (?:\w+ )?(?:is|stays|becomes)|(?:logs?|output|console|server|scheduler|streams?|"
    rb"engine|it) (?:\w+ )?(?:goes|went|falls|fell)) (?:\w+ )?(?:silent|quiet|mute)\b|"
    rb"\b(?:logs?|output|printing|console) (?:\w+ )?stop(?:s|ped)? (?:here|there|at this|after this|dead)\b|"
    rb"\bstill (?:waits|waiting|pending|no (?:answer|tokens?|reply|response|output))\b|"
    rb"\bkeeps? (?:on )?(?:waiting|loading|spinning|hanging)\b|\bjust (?:sits|hangs|waits|spins|stands)\b|"
    rb"\b(?:requests?|prompts?|calls?|they|it) (?:\w+ ){0,3}(?:vanish(?:es)?|disappears?|(?:is|are|get|gets) "
    rb"(?:\w+ )?(?:swallowed|forgotten))\b|"
    rb"\b(?:server|scheduler|engine|process|service|endpoint|it) (?:seems|looks|appears) (?:to be )?(?:dead|asleep|"
    rb"frozen|blocked|locked(?: up)?)\b|\block(?:s|ed) up\b|\bstarv(?:es|ed) (?:" + _UNENDING + rb"|completely)|"
    rb"\b(?:blocks?|blocked|stalls?|stalled)(?= (?:here|there|for (?:minutes|hours)|completely|at this|entirely)\b)|"
    rb"\bconnections?\b.{0,30}\b(?:stays?|remains?|is|are|kept) (?:open|ESTAB\w*)\b.{0,30}"
    rb"\b(?:without|no|nothing|never)\b|"
    rb"\brequests? (?:only |just )?(?:waits?|sits?|stays?) in the queue\b|"
    rb"\bthe same (?:line|message|warning) (?:without end|over and over|repeats)\b"
)


def waits_its_turn(text: bytes) -> bool:
    """Say whether a note has a request wait for the end of another, and no server that stands."""
    return _TURN.search(text) is not None


_WRITES_ON = pattern(
    rb"(?i)\b(?:repeats?|repeating|repeated|loops?|looping|writes?|writing|generates?|generating|prints?|talks?|"
    rb"produces?) (?:[\w'\"()-]+ ){0,7}?" + _UNENDING + rb"\b"
)


def writes_for_ever(clause: bytes) -> bool:
    """Say whether a note has answers that go on without end, which is no silence."""
    return _WRITES_ON.search(clause) is not None


def says_so(clause: bytes) -> bool:
    """Say whether a part of a note says that a server, or requests to it, stand, and does not deny it."""
    said = _SAYS.search(clause) or _TURN.search(clause) or _SAYS_TOO.search(clause)
    return said is not None and _DENIES.search(clause) is None and not writes_for_ever(clause)


_GOES_ON = pattern(
    rb"(?i)\bnew(?:er)? requests? (?:are|is|get) (?:still )?(?:answered|served)|"
    rb"\bnum_(?:queue|running)_reqs\W{0,3}0\b|\bqueue (?:is|stays) empty|\bnothing (?:is )?queued|"
    rb"\bserver (?:looks|is|seems) (?:idle and )?healthy\b"
)
_IDLES = pattern(
    rb"(?i)\b(?:nobody|no ?one|no client) (?:asks|sends|uses|is)\b|\bno (?:incoming |running )?requests?\b|"
    rb"\bidl(?:e|ing)\b|\bwithout (?:any |a )?(?:requests?|load|traffic|clients?)\b|\bno (?:load|traffic)\b|"
    rb"\bnothing is (?:asked|running)\b|\bwhile (?:it|nothing) (?:waits|runs)\b"
)
_BUSY = pattern(
    rb"(?i)\b(?:process(?:es)?|cores?|CPUs?|threads?|schedulers?) (?:\w+ ){0,3}(?:at |of )?(?:full load|1?\d\d ?%)|"
    rb"\b(?:9\d|100) ?% (?:of )?(?:a |one |each |the |per )?(?:CPU|core)|\bCPU (?:usage|use|load)\b|"
    rb"\bbusy (?:loop|poll|wait)|\b(?:burns?|eats?|takes?|hogs?|occup(?:y|ies)|uses?) (?:\w+ ){0,3}(?:cores?|CPUs?)\b|"
    rb"\bpower (?:draw|use|consumption)\b"
)
_SERVES_NOT = pattern(rb"(?i)\b(?:hangs?|stuck|never|no (?:answer|reply|response)|timeouts?|times? out)\b|\bGPU idle\b")


def goes_on(note: bytes) -> bool:
    """Say whether a note has the server take in requests, or none wait, while earlier ones were never answered."""
    return _GOES_ON.search(note) is not None


def turns_while_idle(note: bytes) -> bool:
    """Say whether a note has cores in use, or power, while nobody asks, and no request that stands."""
    return bool(_IDLES.search(note) and _BUSY.search(note) and not _SERVES_NOT.search(note))
