package integration

import (
	"fmt"
	"net/http"
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
// parser of structured fields reads it. A key has one partition in both proxies, and another one than other
// keys.
func TestTheFieldsOfTheDraftAreStructured(t *testing.T) {
	t.Parallel()
	const name = `a "quoted" name 100% é`
	partitions := map[string]string{} // pk, by key
	for proxy, url := range bothProxies(t, cluster.Open(t), "", object{"fields": "x ietf", "zones": []object{
		{"prefix": "wide", "limit": "1000 1d calendar", "algorithm": "fixed_window", "key": "{header.X-Key}"},
		{"prefix": name, "limit": "6 1h", "algorithm": "fixed_window", "key": "{header.X-Key}"},
	}}) {
		await(t, "the salt of pk", func() bool {
			return strings.Contains(harness.Ask(t, harness.Get(url, "X-Key", "first")).
				Header.Get("RateLimit"), ";pk=:")
		})
		for _, key := range []string{"alice", "bob"} {
			h := harness.Ask(t, harness.Get(url, "X-Key", key)).Header
			policies, limits := members(t, h, "RateLimit-Policy"), members(t, h, "RateLimit")
			if got, want := fmt.Sprint(policies[0].name, policies[0].number, policies[1].name,
				policies[1].number),
				`a "quoted" name 100%25 %C3%A9map[q:6 w:3600]widemap[q:1000 w:86400]`; got != want {
				t.Fatalf("%s: the policies are %s, want %s", proxy, got, want)
			}
			for i, m := range policies {
				if m.key == "" || m.key != limits[i].key || m.name != limits[i].name ||
					strings.Contains(m.key, key) {
					t.Errorf("%s: the members are %v and %v", proxy, m, limits[i])
				}
			}
			if left := limits[0].number; fmt.Sprint(left["r"]) != h.Get("X-RateLimit-Remaining") ||
				left["t"] < 3000 || left["t"] > 3600 {
				t.Errorf("%s: %v left, with %s", proxy, left, h.Get("X-RateLimit-Remaining"))
			}
			if before := partitions[key]; before != "" && before != policies[0].key {
				t.Errorf("%s: one key has two partitions", proxy)
			}
			partitions[key] = policies[0].key
		}
	}
	if partitions["alice"] == partitions["bob"] {
		t.Error("two keys are one partition")
	}
}
