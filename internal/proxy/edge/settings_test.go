package edge_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// checkField checks that an error names a field and its value.
func checkField(t *testing.T, err error, field, value string) {
	t.Helper()
	var wrong *ratelimit.FieldError
	if !errors.As(err, &wrong) || wrong.Field != field || wrong.Value != value {
		t.Errorf("%s %q: %v, want an error that names the field and the value", field, value, err)
	}
}

// read reads one setting of a table.
func read(t *testing.T, table []edge.Setting, name, text string) (got edge.Settings, err error) {
	t.Helper()
	for i := range table {
		if table[i].Name == name {
			err = edge.Read(table[i:i+1], edge.Values{name: text}, &got)
			return got, err
		}
	}
	t.Fatalf("no setting %s", name)
	return got, nil
}

// A setting takes what its table says, and the error of any other text names the setting and the text.
func TestSettingsTakeWhatTheirTablesSay(t *testing.T) {
	const day = 24 * time.Hour
	for _, test := range []struct {
		table []edge.Setting
		name  string
		value func(s *edge.Settings) any
		right map[string]any
		wrong []string
	}{
		{edge.LimitTable, "burst", func(s *edge.Settings) any { return s.Limit.Limit.Burst },
			map[string]any{"1": int64(1), "9007199254740992": int64(ratelimit.MaxEvents)}, []string{"0", "-1", "1.5", "9007199254740993", "many"}},
		{edge.LimitTable, "durable", func(s *edge.Settings) any { return s.Limit.Limit.Durable },
			map[string]any{"on": true, "true": true, "1": true, "off": false, "false": false, "0": false, "": false}, []string{"perhaps", "ON"}},
		{edge.StoreTable, "auto_migrate", func(s *edge.Settings) any { return s.Store.AutoMigrate }, map[string]any{"": true, "off": false}, []string{"2"}},
		{edge.HandlerTable, "timeout", func(s *edge.Settings) any { return s.Timeout },
			map[string]any{"": 250 * time.Millisecond, "1ms": time.Millisecond, "1m": time.Minute, "1.5s": 1500 * time.Millisecond}, []string{"0", "0s", "-1s", "999us", "61s", "soon", "250"}},
		{edge.RetentionTable, "usage", func(s *edge.Settings) any { return s.History.KeepUsage },
			map[string]any{"": time.Duration(0), "1d": day, "90d": 90 * day, "12w": 84 * day, "36h": 36 * time.Hour, "1y": 366 * day, "7y": 7 * 366 * day, "100y": 36600 * day},
			[]string{"0d", "23h", "0y", "101y", "-1y", "1.5y", "y", "7 years", "90", "1y6d", "forever"}},
		{edge.StoreTable, "node_name", func(s *edge.Settings) any { return s.Store.NodeName },
			map[string]any{"": "", "edge-1": "edge-1", "Berlin Süd": "Berlin Süd", strings.Repeat("n", 100): strings.Repeat("n", 100)},
			[]string{"a\nb", "a\x00b", "\xff", strings.Repeat("n", 101), "\x7f"}},
		{edge.LimitTable, "cost", func(s *edge.Settings) any { return s.Limit.Cost },
			map[string]any{"": int64(1), "7": int64(7), "{header.X-Cost}": int64(0)}, []string{"0", "-1", "0.5", "much"}},
		{edge.LimitTable, "lease", func(s *edge.Settings) any { return s.Limit.Limit.Lease }, map[string]any{"": 0.0, "0.1%": 0.001, "50%": 0.5}, []string{"0%", "51%", "0.05", "some"}},
		{edge.LimitTable, "mode", func(s *edge.Settings) any { return s.Limit.Mode }, map[string]any{"": policy.Enforce, "shadow": policy.Shadow, "off": policy.Off}, []string{"trial"}},
		{edge.HandlerTable, "on_error", func(s *edge.Settings) any { return s.OnError }, map[string]any{"": edge.Allow, "deny": edge.Deny, "local": edge.Local}, []string{"maybe"}},
		{edge.HandlerTable, "fields", func(s *edge.Settings) any { return s.Fields.IETF }, map[string]any{"": false, "ietf": true, "x ietf": true}, []string{"ietf x", "y"}},
		{edge.PolicyTable, "unknown_key", func(s *edge.Settings) any { return s.RejectUnknown }, map[string]any{"": true, "anonymous": false}, []string{"allow"}},
		{edge.HistoryTable, "audit_address", func(s *edge.Settings) any { return s.History.Address },
			map[string]any{"": history.AddressFull, "prefix": history.AddressPrefix, "off": history.AddressOff}, []string{"half"}},
		{edge.StoreTable, "max_conns", func(s *edge.Settings) any { return s.Store.MaxConns }, map[string]any{"": 0, "1000": 1000}, []string{"-1", "0", "1001"}},
		{edge.StoreTable, "cleanup_probability", func(s *edge.Settings) any { return s.Store.CleanupProbability }, map[string]any{"": 0.1, "0": 0.0}, []string{"1.5", "-0.1", "NaN"}},
	} {
		for text, want := range test.right {
			if got, err := read(t, test.table, test.name, text); test.value(&got) != want || err != nil {
				t.Errorf("%s %q is %v, %v; want %v", test.name, text, test.value(&got), err, want)
			}
		}
		for _, text := range test.wrong {
			_, err := read(t, test.table, test.name, text)
			checkField(t, err, test.name, text)
		}
	}
}

// What only the whole limit shows is wrong is told in the words of the configuration.
func TestErrorsOfALimitNameTheSetting(t *testing.T) {
	for want, from := range map[string]edge.Values{
		`limit: "1001 1h": must be at most 1000 for sliding_log`: {"algorithm": "sliding_log", "limit": "1001 1h"},
		`limit: "9007199254740992/1h": must be smaller for gcra`: {"algorithm": "gcra", "limit": "9007199254740992/1h"},
		`lease: "5%": must be left out for gcra`:                 {"algorithm": "gcra", "limit": "5 1m", "lease": "5%"},
		`burst: "7": must be left out: sliding_window has none`:  {"limit": "5 1m", "burst": "7"},
		`algorithm: "gcra": must be fixed_window`:                {"algorithm": "gcra", "limit": "5 1mo calendar"},
		`algorithm: "leaky": must be one of sliding_window`:      {"algorithm": "leaky", "limit": "5 1m"},
		`limit: missing: must be a whole number of events`:       {},
		`limit: "0 1m": must be a whole number of events from 1`: {"limit": "0 1m"},
		`limit: "5 1m": must be how many requests may run at`:    {"algorithm": "in_flight", "limit": "5 1m"},
		`settle: "bytes": must be left out with in_flight`:       {"algorithm": "in_flight", "limit": "5", "settle": "bytes"},
		`settle: "status 401 = 1": must be header <name>, bytes`: {"limit": "5 1m", "settle": "status 401 = 1"},
		`audit: "some": must be off, denied, all, or sample`:     {"limit": "5 1m", "audit": "some"},
	} {
		from["prefix"] = "a"
		if _, err := edge.ReadLimit(from); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v; want %s", from, err, want)
		}
	}
}

// A client that names its cost gets no free pass.
func TestCostOfARequest(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "7": 7, "0": 1, "00": 1, "": 1, "-3": 1, "-0": 1, "2.5": 1, "many": 1,
		"4611686018427387904": 1 << 62, "18446744073709551615": 1 << 62, "99999999999999999999": 1 << 62,
	} {
		var hit ratelimit.Hit
		if edge.SetCost(&hit, text); hit != (ratelimit.Hit{Cost: want}) {
			t.Errorf("%q is %+v, want the cost %d", text, hit, want)
		}
	}
}

func TestCredentialsAreKnownByTheirNames(t *testing.T) {
	for name, want := range map[string]bool{
		"Authorization": true, "proxy-authorization": true, "Cookie": true, "X-Api-Key": true, "apikey": true, "X-Auth-Token": true,
		"X-Gitlab-Token": true, "Private-Token": true, "X-Amz-Security-Token": true, "X-Goog-Api-Key": true, "X-Auth-Key": true, "X-Secret": true,
		"X-User": false, "User-Agent": false, "X-Forwarded-For": false, "X-Request-Id": false,
	} {
		if settings.CredentialHeader(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestWarnings(t *testing.T) {
	for _, test := range []struct {
		limit ratelimit.Limit
		cost  int64
		want  int
	}{
		{ratelimit.Limit{Events: 10}, 10, 0}, {ratelimit.Limit{Events: 10}, 11, 1}, {ratelimit.Limit{Events: 10}, 0, 0},
		{ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Events: 10, Burst: 20}, 20, 0},
		{ratelimit.Limit{Events: 10, SynchronousCommit: true}, 1, 1}, {ratelimit.Limit{Events: 10, SynchronousCommit: true, Durable: true}, 1, 0},
		{ratelimit.Limit{Events: 10, SynchronousCommit: true}, 11, 2},
	} {
		if got := edge.Warnings(&test.limit, test.cost); len(got) != test.want {
			t.Errorf("%+v, cost %d: %q", test.limit, test.cost, got)
		}
	}
}

// text is an edge.Text of which all placeholders are empty.
type text string

func (t text) Of(*edge.Request) string            { return string(t) }
func (t text) Key(*edge.Request, int, int) string { return string(t) }
func (t text) Fixed() bool                        { return !strings.Contains(string(t), "{") }
func (text) Secret() bool                         { return false }
func (text) Shares(edge.Text) bool                { return false }
func (text) Parts() edge.Parts                    { return edge.Parts{} }

func TestTwoLimitsOnOneRowAreRefused(t *testing.T) {
	zone := func(prefix, key, durable string) *edge.Zone {
		z, err := edge.NewZone(edge.Values{"prefix": prefix, "limit": "1 1h", "key": key, "durable": durable},
			func(_, configured string) (edge.Text, error) { return text(configured), nil })
		if err != nil {
			t.Fatal(err)
		}
		return z
	}
	for _, test := range []struct {
		other  *edge.Zone
		shared bool
	}{
		{zone("a", "k", ""), true},
		{zone("a", "other", ""), false},
		{zone("a", "", ""), true}, // a placeholder may give any key
		{zone("a", "{x} | k", ""), true},
		{zone("b", "", ""), false},
		{zone("a", "", "on"), false},
	} {
		at, err := edge.CheckRows([]*edge.Zone{zone("z", "", ""), zone("a", "k", ""), test.other})
		if !test.shared && err != nil {
			t.Errorf("%+v: %v", test.other, err)
		}
		if test.shared {
			checkField(t, err, "prefix", "a")
			if at != 2 {
				t.Errorf("the error is about limit %d, want 2", at)
			}
		}
	}
}

func TestStoreSettings(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "")
	defaults := edge.StoreSettings{DSN: "postgres://h/db", AutoMigrate: true, CleanupProbability: 0.1, InMemoryBlock: true}
	resolve := func(change func(s *edge.StoreSettings)) edge.StoreSettings {
		t.Helper()
		s := defaults
		change(&s)
		s, err := s.Resolve("here,")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	plain := resolve(func(*edge.StoreSettings) {})
	if resolve(func(s *edge.StoreSettings) { s.MaxConns = 8 }) != plain {
		t.Error("max_conns set to its default makes another store")
	}
	if a, b := resolve(func(s *edge.StoreSettings) { s.DSN = "memory" }), resolve(func(s *edge.StoreSettings) { s.DSN, s.MaxConns = "memory", 3 }); a != b {
		t.Errorf("two stores in memory: %+v and %+v", a, b)
	}
	if s := resolve(func(s *edge.StoreSettings) { s.DSN = "host=h pool_max_conns=2" }); s.MaxConns != 0 {
		t.Errorf("pool_max_conns of the DSN is overruled by %d", s.MaxConns)
	}
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "true")
	if s := resolve(func(*edge.StoreSettings) {}); s.AutoMigrate {
		t.Error("the environment does not turn migration off")
	}
	t.Setenv("DATABASE_URL", "postgres://env/db")
	if s := resolve(func(s *edge.StoreSettings) { s.DSN = "" }); s.DSN != "postgres://env/db" {
		t.Errorf("the DSN is %q, not that of the environment", s.DSN)
	}
}

func TestAWrongEnvironmentIsRefused(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	_, err := edge.StoreSettings{}.Resolve("here,")
	checkField(t, err, "dsn", "")
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "perhaps")
	if _, err := (edge.StoreSettings{DSN: "memory"}).Resolve("here,"); err == nil || !strings.Contains(err.Error(), "PG_RATELIMIT_DISABLE_AUTO_MIGRATE") {
		t.Errorf("a wrong switch in the environment: %v", err)
	}
}
