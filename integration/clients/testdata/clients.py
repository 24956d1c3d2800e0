# Sends one request of each kind to the address in argv[1], and prints what urllib3 reports.
import json, os, sys, threading, urllib3

base, kinds, seconds = sys.argv[1], sys.argv[2].split(','), float(sys.argv[3])
ended = {}

def call(kind):
    retry = urllib3.Retry(3, status_forcelist=[429, 503], raise_on_status=False)
    status = urllib3.PoolManager().request('GET', f'{base}/urllib3/{kind}', retries=retry).status
    ended[kind] = 'passed' if status == 200 else f'refused {status}'

threads = [threading.Thread(target=call, args=(k,), daemon=True) for k in kinds]
for t in threads:
    t.start()
for t in threads:
    t.join(seconds / len(threads) if t is not threads[0] else seconds)
for kind in kinds:
    print(json.dumps({'client': 'urllib3', 'kind': kind, 'end': ended.get(kind, 'waits')}), flush=True)
os._exit(0)
