package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// member is a member of RateLimit or RateLimit-Policy.
type member struct {
	name   string
	number map[string]int64
	key    string // pk
}

// members reads RateLimit or RateLimit-Policy as RFC 9651 says.
func members(t *testing.T, h http.Header, field string) []member {
	t.Helper()
	list, err := httpsfv.UnmarshalList(h.Values(field))
	if err != nil {
		t.Fatalf("%s %q: %v", field, h.Values(field), err)
	}
	var all []member
	for _, m := range list {
		item := m.(httpsfv.Item)
		one := member{name: item.Value.(string), number: map[string]int64{}}
		for _, name := range item.Params.Names() {
			value, _ := item.Params.Get(name)
			if name == "pk" {
				one.key = string(value.([]byte))
				continue
			}
			one.number[name] = value.(int64)
		}
		all = append(all, one)
	}
	return all
}

// TestTheFieldsOfTheDraftAreStructured: both proxies send a member for each limit, the tightest first, and a
// parser of structured fields reads it. No member discloses a key.
func TestTheFieldsOfTheDraftAreStructured(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	const name = `a "quoted" name 100% é`
	inTraefik := object{"fields": "x ietf", "zones": []object{
		{"prefix": "traefik-wide", "limit": "1000 1d calendar", "algorithm": "fixed_window", "key": "{header.X-Key}"},
		{"prefix": "traefik " + name, "limit": "3 1h", "algorithm": "fixed_window", "key": "{header.X-Key}"},
		{"prefix": "traefik-bucket", "limit": "100 1m", "algorithm": "token_bucket", "burst": "50", "key": "{header.X-Key}"},
		{"prefix": "traefik-shadow", "limit": "1 1h", "mode": "shadow"},
		{"prefix": "traefik-huge", "limit": "9007199254740992 1500ms"},
	}}
	inCaddy := "fields x ietf\n"
	for _, zone := range []string{
		"wide {\n\tlimit 1000 1d calendar\n\talgorithm fixed_window\n\tkey {header.X-Key}\n}", "%s {\n\tlimit 3 1h\n\talgorithm fixed_window\n\tkey {header.X-Key}\n}",
		"bucket {\n\tlimit 100 1m\n\talgorithm token_bucket\n\tburst 50\n\tkey {header.X-Key}\n}", "shadow {\n\tlimit 1 1h\n\tmode shadow\n}", "huge {\n\tlimit 9007199254740992 1500ms\n}",
	} {
		if strings.HasPrefix(zone, "%s") {
			zone = fmt.Sprintf(zone, `"caddy `+strings.ReplaceAll(name, `"`, `\"`)+`"`)
		} else {
			zone = "caddy-" + zone
		}
		inCaddy += "zone " + zone + "\n"
	}
	const escaped = `a "quoted" name 100%25 %C3%A9`
	for proxy, url := range bothProxies(t, dsn, startBackend(t), inCaddy, inTraefik) {
		keys := map[string]string{} // pk, by key
		for _, key := range []string{"alice", "bob"} {
			for i := range int64(4) {
				answer := harness.Ask(t, harness.Get(url, "X-Key", key))
				h := answer.Header
				policies, limits := members(t, h, "RateLimit-Policy"), members(t, h, "RateLimit")
				var order []string
				for j, m := range policies {
					order = append(order, strings.TrimPrefix(strings.TrimPrefix(m.name, proxy), "-"))
					if m.key == "" || m.key != limits[j].key || m.name != limits[j].name || strings.Contains(m.key, key) {
						t.Errorf("%s: the members are %v and %v", proxy, m, limits[j])
					}
				}
				if got, want := strings.Join(order, ","), " "+escaped+",bucket,wide,huge"; got != want {
					t.Fatalf("%s: the limits are %s, want %s", proxy, got, want)
				}
				tight, bucket, wide, huge := policies[0].number, policies[1].number, policies[2].number, policies[3].number
				if fmt.Sprint(tight) != "map[q:3 w:3600]" || fmt.Sprint(bucket) != "map[q:50 w:30]" || fmt.Sprint(wide) != "map[q:1000 w:86400]" || fmt.Sprint(huge) != "map[q:999999999999999]" {
					t.Errorf("%s: the policies are %v", proxy, policies)
				}
				left := limits[0].number
				if i < 3 {
					if answer.Status != http.StatusOK || left["r"] != 2-i || left["t"] < 3500 || left["t"] > 3600 || limits[2].number["t"] > 86400 {
						t.Errorf("%s: %d with %v", proxy, answer.Status, limits)
					}
				} else if retry := h.Get("Retry-After"); answer.Status != http.StatusTooManyRequests || left["r"] != 0 || retry == "" || fmt.Sprint(left["t"]) != retry {
					t.Errorf("%s: %d with %v and Retry-After %s", proxy, answer.Status, limits, retry)
				}
				if h.Get("X-RateLimit-Limit") != "3" {
					t.Errorf("%s: X-RateLimit-Limit is %q", proxy, h.Get("X-RateLimit-Limit"))
				}
				if before := keys[key]; before != "" && before != policies[0].key {
					t.Errorf("%s: one key has two partitions", proxy)
				}
				keys[key] = policies[0].key
			}
		}
		if keys["alice"] == keys["bob"] {
			t.Errorf("%s: two keys are one partition", proxy)
		}
	}
}

// TestTheFieldsOfTheDraftAlone: the answers have no X-RateLimit headers. Those of an upstream stand, and its own
// fields of the draft are replaced, or stand behind ours.
func TestTheFieldsOfTheDraftAlone(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("RateLimit-Policy", `"up";q=7;w=60`)
		w.Header().Set("RateLimit", `"up";r=6;t=60`)
		w.Header().Set("X-RateLimit-Limit", "7")
		if r.URL.Path == "/hint" {
			w.WriteHeader(http.StatusEarlyHints)
		}
		w.WriteHeader(http.StatusOK)
	}))
	t.Cleanup(upstream.Close)
	for headers, want := range map[string]string{"auto": "", "ours": "", "both": ",up", "tighter": ",up"} {
		for proxy, url := range bothProxies(t, dsn, upstream.URL, "prefix caddy-"+headers+"\nlimit 4 1h\nalgorithm fixed_window\nfields ietf\nheaders "+headers,
			object{"prefix": "traefik-" + headers, "limit": "4 1h", "algorithm": "fixed_window", "fields": "ietf", "headers": headers}) {
			for i, path := range []string{"/", "/hint", "/", "/"} {
				h := harness.Ask(t, harness.Get(url+path)).Header
				names := ""
				for _, m := range members(t, h, "RateLimit") {
					names += "," + m.name
				}
				if left := members(t, h, "RateLimit")[0].number["r"]; names != ","+proxy+"-"+headers+want || left != int64(3-i) {
					t.Errorf("%s, %s, %s: %d is left, and RateLimit has %s", proxy, headers, path, left, names)
				}
				if got := len(members(t, h, "RateLimit-Policy")); got != 1+strings.Count(want, ",") {
					t.Errorf("%s, %s, %s: %d policies", proxy, headers, path, got)
				}
				if got := h.Values("X-RateLimit-Limit"); len(got) != 1 || got[0] != "7" || h.Get("X-RateLimit-Remaining") != "" {
					t.Errorf("%s, %s, %s: X-RateLimit-Limit is %q", proxy, headers, path, got)
				}
			}
			answer := harness.Ask(t, harness.Get(url))
			if h := answer.Header; answer.Status != http.StatusTooManyRequests || h.Get("X-RateLimit-Limit") != "" || len(members(t, h, "RateLimit")) != 1 || h.Get("Retry-After") == "" {
				t.Errorf("%s, %s: %d with %v", proxy, headers, answer.Status, h)
			}
		}
	}
}
