package settings_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
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
func read(t *testing.T, table []settings.Setting, name, text string) (got settings.Settings, err error) {
	t.Helper()
	for i := range table {
		if table[i].Name == name {
			err = settings.Read(table[i:i+1], settings.Values{name: text}, &got)
			return got, err
		}
	}
	t.Fatalf("no setting %s", name)
	return got, nil
}

// kept returns the only retention, or 0.
func kept(s *settings.Settings) any {
	for _, r := range s.History.Retention {
		return r.Keep
	}
	return time.Duration(0)
}

// A setting takes what its table says, and the error of any other text names the setting and the text.
func TestSettingsTakeWhatTheirTablesSay(t *testing.T) {
	const day = 24 * time.Hour
	for _, test := range []struct {
		table []settings.Setting
		name  string
		value func(s *settings.Settings) any
		right map[string]any
		wrong []string
	}{
		{settings.LimitTable, "burst", func(s *settings.Settings) any { return s.Limit.Limit.Burst },
			map[string]any{"1": int64(1), "9007199254740992": int64(ratelimit.MaxEvents)}, []string{"0", "-1",
				"1.5", "9007199254740993", "many"}},
		{settings.LimitTable, "durable", func(s *settings.Settings) any { return s.Limit.Limit.Durable },
			map[string]any{"on": true, "true": true, "1": true, "off": false, "false": false, "0": false,
				"": false}, []string{"perhaps", "ON"}},
		{settings.StoreTable, "auto_migrate", func(s *settings.Settings) any { return s.Store.AutoMigrate },
			map[string]any{"": true, "off": false}, []string{"2"}},
		{settings.HandlerTable, "timeout", func(s *settings.Settings) any { return s.Timeout },
			map[string]any{"": 250 * time.Millisecond, "1ms": time.Millisecond, "1m": time.Minute,
				"1.5s": 1500 * time.Millisecond}, []string{"0", "0s", "-1s", "999us", "61s", "soon", "250"}},
		{settings.RetentionTable, "usage", kept,
			map[string]any{"": time.Duration(0), "1d": day, "90d": 90 * day, "12w": 84 * day,
				"36h": 36 * time.Hour, "1y": 366 * day, "7y": 7 * 366 * day, "100y": 36600 * day},
			[]string{"0d", "23h", "0y", "101y", "-1y", "1.5y", "y", "7 years", "90", "1y6d", "forever"}},
		{settings.StoreTable, "node_name", func(s *settings.Settings) any { return s.Store.NodeName },
			map[string]any{"": "", "edge-1": "edge-1", "Berlin Süd": "Berlin Süd",
				strings.Repeat("n", 100): strings.Repeat("n", 100)},
			[]string{"a\nb", "a\x00b", "\xff", strings.Repeat("n", 101), "\x7f"}},
		{settings.LimitTable, "cost", func(s *settings.Settings) any { return s.Limit.Cost },
			map[string]any{"": int64(1), "7": int64(7), "{header.X-Cost}": int64(0)}, []string{"0", "-1",
				"0.5", "much"}},
		{settings.LimitTable, "lease", func(s *settings.Settings) any { return s.Limit.Limit.Lease },
			map[string]any{"": 0.0, "0.1%": 0.001, "50%": 0.5}, []string{"0%", "51%", "0.05", "some"}},
		{settings.LimitTable, "mode", func(s *settings.Settings) any { return s.Limit.Mode },
			map[string]any{"": settings.Enforce, "shadow": settings.Shadow}, []string{"trial"}},
		{settings.HandlerTable, "on_error", func(s *settings.Settings) any { return s.OnError },
			map[string]any{"": settings.Allow, "deny": settings.Deny,
				"local": settings.Local}, []string{"maybe"}},
		{settings.HandlerTable, "fields", func(s *settings.Settings) any { return s.Fields.IETF },
			map[string]any{"": false, "ietf": true, "x ietf": true}, []string{"ietf x", "y"}},
		{settings.PolicyTable, "unknown_key", func(s *settings.Settings) any { return s.RejectUnknown },
			map[string]any{"": true, "anonymous": false}, []string{"allow"}},
		{settings.HistoryTable, "audit_address", func(s *settings.Settings) any { return s.History.Address },
			map[string]any{"": settings.AddressFull, "prefix": settings.AddressPrefix,
				"off": settings.AddressOff}, []string{"half"}},
		{settings.StoreTable, "max_conns", func(s *settings.Settings) any { return s.Store.MaxConns },
			map[string]any{"": 0, "1000": 1000}, []string{"-1", "0", "1001"}},
		{settings.StoreTable, "cleanup_probability",
			func(s *settings.Settings) any { return s.Store.CleanupProbability }, map[string]any{"": 0.1,
				"0": 0.0}, []string{"1.5", "-0.1", "NaN"}},
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

// An error that only the whole limit shows has the words of the configuration.
func TestErrorsOfALimitNameTheSetting(t *testing.T) {
	for want, from := range map[string]settings.Values{
		`limit: "1001 1h": must be at most 1000 for sliding_log`: {"algorithm": "sliding_log",
			"limit": "1001 1h"},
		`limit: "9007199254740992/1h": must be smaller for gcra`: {"algorithm": "gcra",
			"limit": "9007199254740992/1h"},
		`lease: "5%": must be left out for gcra`: {"algorithm": "gcra", "limit": "5 1m",
			"lease": "5%"},
		`burst: "7": must be left out: sliding_window has none`: {"limit": "5 1m", "burst": "7"},
		`algorithm: "gcra": must be fixed_window`: {"algorithm": "gcra",
			"limit": "5 1mo calendar"},
		`algorithm: "leaky": must be one of sliding_window`:      {"algorithm": "leaky", "limit": "5 1m"},
		`limit: missing: must be a whole number of events`:       {},
		`limit: "0 1m": must be a whole number of events from 1`: {"limit": "0 1m"},
		`limit: "5 1m": must be how many requests may run at`:    {"algorithm": "in_flight", "limit": "5 1m"},
		`settle: "bytes": must be left out with in_flight`: {"algorithm": "in_flight", "limit": "5",
			"settle": "bytes"},
		`settle: "status 401 = 1": must be header <name>, bytes`: {"limit": "5 1m",
			"settle": "status 401 = 1"},
		`audit: "some": must be off, denied, all, or sample`: {"limit": "5 1m", "audit": "some"},
	} {
		from["prefix"] = "a"
		if _, err := settings.ReadLimit(from); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v; want %s", from, err, want)
		}
	}
}

func TestCredentialsAreKnownByTheirNames(t *testing.T) {
	for name, want := range map[string]bool{
		"Authorization": true, "proxy-authorization": true, "Cookie": true, "X-Api-Key": true, "apikey": true,
		"X-Auth-Token":   true,
		"X-Gitlab-Token": true, "Private-Token": true, "X-Amz-Security-Token": true, "X-Goog-Api-Key": true,
		"X-Auth-Key": true, "X-Secret": true,
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
		{ratelimit.Limit{Events: 10}, 10, 0}, {ratelimit.Limit{Events: 10}, 11,
			1}, {ratelimit.Limit{Events: 10}, 0, 0},
		{ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Events: 10, Burst: 20}, 20, 0},
		{ratelimit.Limit{Events: 10, SynchronousCommit: true}, 1,
			1}, {ratelimit.Limit{Events: 10, SynchronousCommit: true, Durable: true}, 1, 0},
		{ratelimit.Limit{Events: 10, SynchronousCommit: true}, 11, 2},
	} {
		if got := (&settings.ConfiguredLimit{Limit: test.limit,
			Cost: test.cost}).Warnings(); len(got) != test.want {
			t.Errorf("%+v, cost %d: %q", test.limit, test.cost, got)
		}
	}
}

func TestStoreSettings(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "")
	defaults := settings.Store{
		DSN:                "postgres://h/db",
		AutoMigrate:        true,
		CleanupProbability: 0.1,
		InMemoryBlock:      true,
	}
	resolve := func(change func(s *settings.Store)) settings.Store {
		t.Helper()
		s := defaults
		change(&s)
		s, err := s.Resolve("here,")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	plain := resolve(func(*settings.Store) {})
	if resolve(func(s *settings.Store) { s.MaxConns = 8 }) != plain {
		t.Error("max_conns set to its default makes another store")
	}
	if a, b := resolve(func(s *settings.Store) { s.DSN = "memory" }),
		resolve(func(s *settings.Store) { s.DSN, s.MaxConns = "memory", 3 }); a != b {
		t.Errorf("two stores in memory: %+v and %+v", a, b)
	}
	if s := resolve(func(s *settings.Store) { s.DSN = "host=h pool_max_conns=2" }); s.MaxConns != 0 {
		t.Errorf("pool_max_conns of the DSN is overruled by %d", s.MaxConns)
	}
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "true")
	if s := resolve(func(*settings.Store) {}); s.AutoMigrate {
		t.Error("the environment does not turn migration off")
	}
	t.Setenv("DATABASE_URL", "postgres://env/db")
	if s := resolve(func(s *settings.Store) { s.DSN = "" }); s.DSN != "postgres://env/db" {
		t.Errorf("the DSN is %q, not that of the environment", s.DSN)
	}
}

func TestAWrongEnvironmentIsRefused(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	_, err := settings.Store{}.Resolve("here,")
	checkField(t, err, "dsn", "")
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "perhaps")
	if _, err := (settings.Store{DSN: "memory"}).Resolve("here,"); err == nil ||
		!strings.Contains(err.Error(), "PG_RATELIMIT_DISABLE_AUTO_MIGRATE") {
		t.Errorf("a wrong switch in the environment: %v", err)
	}
}

func TestParseAudit(t *testing.T) {
	unset := settings.Audit{Level: settings.AuditDenied}
	for text, want := range map[string]settings.Audit{
		"": unset, "off": {}, "denied": {Level: settings.AuditDenied}, "all": {Level: settings.AuditAll},
		"sample 1%":    {Level: settings.AuditSample, Share: 0.01},
		"sample  0.5%": {Level: settings.AuditSample, Share: 0.005},
		"sample 100%":  {Level: settings.AuditSample, Share: 1},
	} {
		if got, err := settings.ParseAudit(text, unset); err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"on", "sample", "sample 1", "sample 0%", "sample -1%", "sample 101%",
		"sample NaN%", "sample 1% 2%", "ALL", " "} {
		var field *ratelimit.FieldError
		if got, err := settings.ParseAudit(text, unset); !errors.As(err, &field) || field.Field != "audit" ||
			field.Value != text {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
}

func TestTheAuditThatRecordsMostCounts(t *testing.T) {
	ordered := []settings.Audit{
		{Level: settings.AuditOff}, {Level: settings.AuditDenied}, {Level: settings.AuditSample, Share: 0.1},
		{Level: settings.AuditSample, Share: 0.2}, {Level: settings.AuditAll},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := settings.MoreAudit(a, b); got != ordered[max(i, j)] {
				t.Errorf("of %+v and %+v: %+v", a, b, got)
			}
		}
	}
}
