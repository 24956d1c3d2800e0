package settings_test

import (
	"errors"
	"fmt"
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
		t.Errorf("got error %v, want one with the field %s and the value %q", err, field, value)
	}
}

// readSetting reads one setting of a table.
func readSetting(t *testing.T, table []settings.Setting, name, text string) (settings.Settings, error) {
	t.Helper()
	var got settings.Settings
	for i := range table {
		if table[i].Name == name {
			err := settings.Read(table[i:i+1], settings.Values{name: text}, &got)
			return got, err
		}
	}
	t.Fatalf("no setting %s", name)
	return got, nil
}

// onlyRetention returns the only retention, or 0.
func onlyRetention(s *settings.Settings) any {
	for _, r := range s.History.Retention {
		return r.Keep
	}
	return time.Duration(0)
}

const day = 24 * time.Hour

// settingTests lists the texts that a setting accepts, with their values, and texts that it refuses.
var settingTests = []struct {
	table []settings.Setting
	name  string
	value func(s *settings.Settings) any
	right map[string]any
	wrong []string
}{
	{
		table: settings.LimitTable, name: "burst",
		value: func(s *settings.Settings) any { return s.Limit.Limit.Burst },
		right: map[string]any{"1": int64(1), "9007199254740992": int64(ratelimit.MaxEvents)},
		wrong: []string{"0", "-1", "1.5", "9007199254740993", "many"},
	},
	{
		table: settings.LimitTable, name: "durable",
		value: func(s *settings.Settings) any { return s.Limit.Limit.Durable },
		right: map[string]any{"on": true, "true": true, "1": true, "off": false, "false": false, "0": false,
			"": false},
		wrong: []string{"perhaps", "ON"},
	},
	{
		table: settings.StoreTable, name: "auto_migrate",
		value: func(s *settings.Settings) any { return s.Store.AutoMigrate },
		right: map[string]any{"": true, "off": false}, wrong: []string{"2"},
	},
	{
		table: settings.HandlerTable, name: "timeout",
		value: func(s *settings.Settings) any { return s.Timeout },
		right: map[string]any{"": 250 * time.Millisecond, "1ms": time.Millisecond, "1m": time.Minute,
			"1.5s": 1500 * time.Millisecond},
		wrong: []string{"0", "0s", "-1s", "999us", "61s", "soon", "250"},
	},
	{
		table: settings.RetentionTable, name: "usage", value: onlyRetention,
		right: map[string]any{"": time.Duration(0), "1d": day, "90d": 90 * day, "12w": 84 * day,
			"36h": 36 * time.Hour, "1y": 366 * day, "7y": 7 * 366 * day, "100y": 36600 * day},
		wrong: []string{"0d", "23h", "0y", "101y", "-1y", "1.5y", "y", "7 years", "90", "1y6d", "forever"},
	},
	{
		table: settings.StoreTable, name: "node_name",
		value: func(s *settings.Settings) any { return s.Store.NodeName },
		right: map[string]any{"": "", "edge-1": "edge-1", "Berlin Süd": "Berlin Süd",
			strings.Repeat("n", 100): strings.Repeat("n", 100)},
		wrong: []string{"a\nb", "a\x00b", "\xff", strings.Repeat("n", 101), "\x7f"},
	},
	{
		table: settings.LimitTable, name: "cost",
		value: func(s *settings.Settings) any { return s.Limit.Cost },
		right: map[string]any{"": int64(1), "7": int64(7), "{header.X-Cost}": int64(0)},
		wrong: []string{"0", "-1", "0.5", "much"},
	},
	{
		table: settings.LimitTable, name: "lease",
		value: func(s *settings.Settings) any { return s.Limit.Limit.Lease },
		right: map[string]any{"": 0.0, "0.1%": 0.001, "50%": 0.5},
		wrong: []string{"0%", "51%", "0.05", "some"},
	},
	{
		table: settings.LimitTable, name: "settle",
		value: func(s *settings.Settings) any {
			if s.Limit.Settle == nil {
				return "none"
			}
			u := *s.Limit.Settle
			return fmt.Sprintf("%s %v %v %v %d %d", u.Header, u.Bytes, u.Path, u.Statuses, u.Cost, u.Else)
		},
		right: map[string]any{
			" ":                          "none",
			"header x-tokens":            "X-Tokens false [] [] 0 0",
			"bytes":                      " true [] [] 0 0",
			"json usage.total_tokens":    " false [usage total_tokens] [] 0 0",
			"json tokens":                " false [tokens] [] 0 0",
			"status 401 403 = 1, else 0": " false [] [401 403] 1 0",
			"status  500 = 0,  else 999999999999999 ": " false [] [500] 0 999999999999999",
		},
		wrong: []string{
			"header", "header a b", "header a:b", "bytes 1", "json", "json .a", "json a..b", "json a b",
			"status", "status 401", "status 401 = 1", "status 401 = 1 else 0", "status 99 = 1, else 0",
			"status 600 = 1, else 0", "status = 1, else 0", "status 401 = -1, else 0",
			"status 401 = 1, else 1000000000000000", "status 0401 = 1, else 0", "tokens", "json a\x00.b c",
		},
	},
	{
		table: settings.LimitTable, name: "key",
		value: func(s *settings.Settings) any { return strings.Join(s.Limit.Alternatives, ",") },
		right: map[string]any{
			"": "", "{client_ip}": "", "{host}|{path}": "", "a||b": "", "{host} {path}": "",
			"{header.X} | {client_ip}":        "{header.X},{client_ip}",
			"{header.X}  |  {cookie.a} | all": "{header.X},{cookie.a},all",
			"{header.X}{header.Y} | {host}/a": "{header.X}{header.Y},{host}/a",
		},
		wrong: []string{"|", "| {client_ip}", "{client_ip} |", "{header.X} || {client_ip}",
			"{header.X} | | {client_ip}", "x{header.X} | {client_ip}", "all | {client_ip}",
			"{header.X}\t|\t{host}"},
	},
	{
		table: settings.LimitTable, name: "mode",
		value: func(s *settings.Settings) any { return s.Limit.Mode },
		right: map[string]any{"": settings.Enforce, "shadow": settings.Shadow}, wrong: []string{"trial"},
	},
	{
		table: settings.HandlerTable, name: "on_error",
		value: func(s *settings.Settings) any { return s.OnError },
		right: map[string]any{"": settings.Allow, "deny": settings.Deny, "local": settings.Local},
		wrong: []string{"maybe"},
	},
	{
		table: settings.HandlerTable, name: "fields",
		value: func(s *settings.Settings) any { return s.Fields.IETF },
		right: map[string]any{"": false, "ietf": true, "x ietf": true}, wrong: []string{"ietf x", "y"},
	},
	{
		table: settings.PolicyTable, name: "unknown_key",
		value: func(s *settings.Settings) any { return s.RejectUnknown },
		right: map[string]any{"": true, "anonymous": false}, wrong: []string{"allow"},
	},
	{
		table: settings.HistoryTable, name: "audit_address",
		value: func(s *settings.Settings) any { return s.History.Address },
		right: map[string]any{"": settings.AddressFull, "prefix": settings.AddressPrefix,
			"off": settings.AddressOff},
		wrong: []string{"half"},
	},
	{
		table: settings.StoreTable, name: "max_conns",
		value: func(s *settings.Settings) any { return s.Store.MaxConns },
		right: map[string]any{"": 0, "1000": 1000}, wrong: []string{"-1", "0", "1001"},
	},
	{
		table: settings.StoreTable, name: "cleanup_probability",
		value: func(s *settings.Settings) any { return s.Store.CleanupProbability },
		right: map[string]any{"": 0.1, "0": 0.0}, wrong: []string{"1.5", "-0.1", "NaN"},
	},
}

// A setting accepts its documented texts, and refuses other texts with an error that names the setting and
// the text.
func TestSettingsAcceptDocumentedValues(t *testing.T) {
	for _, test := range settingTests {
		for text, want := range test.right {
			read, err := readSetting(t, test.table, test.name, text)
			if got := test.value(&read); got != want || err != nil {
				t.Errorf("%s %q: got %v and error %v, want %v", test.name, text, got, err, want)
			}
		}
		for _, text := range test.wrong {
			_, err := readSetting(t, test.table, test.name, text)
			checkField(t, err, test.name, text)
		}
	}
}

// If settings of a limit do not fit together, the error names a setting as in the configuration, not a field
// of ratelimit.Limit.
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
		`limit: "5 1m": must be the number of concurrent`:        {"algorithm": "in_flight", "limit": "5 1m"},
		`settle: "bytes": must be left out with in_flight`: {"algorithm": "in_flight", "limit": "5",
			"settle": "bytes"},
		`settle: "status 401 = 1": must be header <name>, bytes`: {"limit": "5 1m",
			"settle": "status 401 = 1"},
		`audit: "some": must be off, denied, all, or sample`: {"limit": "5 1m", "audit": "some"},
	} {
		from["prefix"] = "a"
		if _, err := settings.ReadLimit(from); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: got error %v, want %s", from, err, want)
		}
	}
}

// CredentialHeader reports whether a header usually has a secret, such as an API key.
func TestCredentialHeader(t *testing.T) {
	for name, want := range map[string]bool{
		"Authorization": true, "proxy-authorization": true, "Cookie": true, "X-Api-Key": true, "apikey": true,
		"X-Auth-Token":   true,
		"X-Gitlab-Token": true, "Private-Token": true, "X-Amz-Security-Token": true, "X-Goog-Api-Key": true,
		"X-Auth-Key": true, "X-Secret": true,
		"X-User": false, "User-Agent": false, "X-Forwarded-For": false, "X-Request-Id": false,
	} {
		if got := settings.CredentialHeader(name); got != want {
			t.Errorf("CredentialHeader(%q) = %v, want %v", name, got, want)
		}
	}
}

// A limit has warnings about a cost that never passes, and about SynchronousCommit without Durable.
func TestWarnings(t *testing.T) {
	for _, test := range []struct {
		limit ratelimit.Limit
		cost  int64
		want  int
	}{
		{limit: ratelimit.Limit{Events: 10}, cost: 10, want: 0},
		{limit: ratelimit.Limit{Events: 10}, cost: 11, want: 1},
		{limit: ratelimit.Limit{Events: 10}, cost: 0, want: 0},
		{limit: ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Events: 10, Burst: 20}, cost: 20, want: 0},
		{limit: ratelimit.Limit{Events: 10, SynchronousCommit: true}, cost: 1, want: 1},
		{limit: ratelimit.Limit{Events: 10, SynchronousCommit: true, Durable: true}, cost: 1, want: 0},
		{limit: ratelimit.Limit{Events: 10, SynchronousCommit: true}, cost: 11, want: 2},
	} {
		l := settings.ConfiguredLimit{Limit: test.limit, Cost: test.cost}
		if got := l.Warnings(); len(got) != test.want {
			t.Errorf("warnings of %+v with cost %d are %q, want %d", test.limit, test.cost, got, test.want)
		}
	}
}

// Stores with the same effective settings are equal after Resolve. The environment has the settings that the
// configuration leaves out.
func TestStoreSettings(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "")
	defaults := settings.Store{
		DSN:                "postgres://h/db",
		AutoMigrate:        true,
		CleanupProbability: 0.1,
		RememberedRefusals: true,
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
	if s := resolve(func(s *settings.Store) { s.MaxConns = 8 }); s != plain {
		t.Errorf("with max_conns set to its default, the store is %+v, want %+v", s, plain)
	}
	one := resolve(func(s *settings.Store) { s.DSN = "memory" })
	other := resolve(func(s *settings.Store) { s.DSN, s.MaxConns = "memory", 3 })
	if one != other {
		t.Errorf("stores in memory are %+v and %+v, want the same", one, other)
	}
	if s := resolve(func(s *settings.Store) { s.DSN = "host=h pool_max_conns=2" }); s.MaxConns != 0 {
		t.Errorf("with pool_max_conns in the DSN, MaxConns is %d, want 0", s.MaxConns)
	}
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "true")
	if s := resolve(func(*settings.Store) {}); s.AutoMigrate {
		t.Error("AutoMigrate is true, want the false of the environment")
	}
	t.Setenv("DATABASE_URL", "postgres://env/db")
	if s := resolve(func(s *settings.Store) { s.DSN = "" }); s.DSN != "postgres://env/db" {
		t.Errorf("the DSN is %q, want the one of the environment", s.DSN)
	}
}

func TestInvalidEnvironmentIsRefused(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	_, err := settings.Store{}.Resolve("here,")
	checkField(t, err, "dsn", "")
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "perhaps")
	_, err = settings.Store{DSN: "memory"}.Resolve("here,")
	if !strings.Contains(fmt.Sprint(err), "PG_RATELIMIT_DISABLE_AUTO_MIGRATE") {
		t.Errorf("error %v, want one that names PG_RATELIMIT_DISABLE_AUTO_MIGRATE", err)
	}
}

// ParseAudit reads each level and share, and refuses any other text with an error that names audit and the
// text.
func TestParseAudit(t *testing.T) {
	fallback := settings.Audit{Level: settings.AuditDenied}
	for text, want := range map[string]settings.Audit{
		"": fallback, "off": {}, "denied": {Level: settings.AuditDenied}, "all": {Level: settings.AuditAll},
		"sample 1%":    {Level: settings.AuditSample, Share: 0.01},
		"sample  0.5%": {Level: settings.AuditSample, Share: 0.005},
		"sample 100%":  {Level: settings.AuditSample, Share: 1},
	} {
		if got, err := settings.ParseAudit(text, fallback); err != nil || got != want {
			t.Errorf("ParseAudit(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"on", "sample", "sample 1", "sample 0%", "sample -1%", "sample 101%",
		"sample NaN%", "sample 1% 2%", "ALL", " "} {
		_, err := settings.ParseAudit(text, fallback)
		checkField(t, err, "audit", text)
	}
}

// MaxAudit returns the audit that records more requests.
func TestMaxAudit(t *testing.T) {
	ordered := []settings.Audit{
		{Level: settings.AuditOff}, {Level: settings.AuditDenied}, {Level: settings.AuditSample, Share: 0.1},
		{Level: settings.AuditSample, Share: 0.2}, {Level: settings.AuditAll},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := settings.MaxAudit(a, b), ordered[max(i, j)]; got != want {
				t.Errorf("MaxAudit(%+v, %+v) = %+v, want %+v", a, b, got, want)
			}
		}
	}
}
