for f in serve probes_live collect_live contain_live included_live unsent_requests_live serving_bench_live bench_probes parity_with_transformers experts_parity clean_run_diagnosed vision_live logit_faults_live swa_peak_live repro_mtp repro_mutations quality_live diff_live diff_pictures_live diff_pressure_live crash_scripts_live; do
 echo "=== $f $(date -u +%H:%M:%S)"
 timeout 500 /tmp/wt/newest/.venv-0.5.23/bin/python -m pytest tests/engine/test_$f.py --tb=short -rfE -p no:cacheprovider > /tmp/wt/newest_runs/eng_$f.log 2>&1; echo "rc $?"; grep -E "^[0-9]+ (passed|failed)|passed|failed|error" /tmp/wt/newest_runs/eng_$f.log | tail -1 | cut -c1-150
done
echo END
