package settings_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
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

// allSettings lists the settings of all tables that have a Read.
var allSettings = slices.DeleteFunc(slices.Concat(settings.LimitTable, settings.HandlerTable,
	settings.PolicyTable, settings.PageTable, settings.ConnectionTable, settings.HistoryTable,
	settings.RetentionTable), func(s settings.Setting) bool { return s.Read == nil })

// valueOf returns the value of a setting.
func valueOf(name string, s *settings.Settings) any {
	l := &s.Limit
	return map[string]any{
		"burst": l.Limit.Burst, "unit": l.Unit, "output": l.Output,
		"durable": l.Limit.Durable, "lease": l.Limit.Lease, "cost": l.Cost,
		"max_body": s.MaxBody,
		"settle":   l.CostSource, "key": l.Alternatives, "mode": l.Mode, "timeout": s.Timeout,
		"on_error": s.OnError, "fields": s.Fields.IETF, "unknown_key": s.RejectUnknown,
		"auto_migrate": s.Connection.AutoMigrate, "max_conns": s.Connection.MaxConns,
		"node_name":           strconv.Quote(s.Connection.NodeName),
		"cleanup_probability": s.Connection.CleanupProbability, "audit_address": s.History.Address,
		"usage": s.History.Retention,
	}[name]
}

// readSetting returns the value of one setting, read from text.
func readSetting(name, text string) (any, error) {
	if name == "audit" {
		return option.ParseAudit(text, option.Audit{Level: option.AuditDenied})
	}
	var read settings.Settings
	i := slices.IndexFunc(allSettings, func(s settings.Setting) bool { return s.Name == name })
	err := settings.Read(allSettings[i:i+1], settings.Values{name: text}, &read)
	return valueOf(name, &read), err
}

var pair = regexp.MustCompile(`(\w+) ("(?:[^"\\]|\\.)*")`)

// A setting accepts its documented texts, and refuses other texts with an error that names the setting and
// the text. If settings of a limit do not fit together, the error names a setting as in the configuration,
// not a field of ratelimit.Limit.
//
// A line of the file has one setting, or from its prefix on all settings of a limit.
func TestSettingsAcceptDocumentedValues(t *testing.T) {
	golden.ReplayLines(t, "testdata/settings.txt", func(t *testing.T, name, text string) string {
		values := settings.Values{}
		for _, match := range pair.FindAllStringSubmatch(name+" "+text, -1) {
			values[match[1]], _ = strconv.Unquote(match[2])
		}
		var value any
		var err error
		if name == "prefix" {
			value, err = settings.ReadLimit(values)
		} else if value, err = readSetting(name, values[name]); err != nil {
			checkField(t, err, name, values[name])
		}
		if err != nil {
			value = err
		}
		return fmt.Sprintf("%+v", value)
	})
}

// Headers that usually have a secret, such as an API key, are recognized in any case. Other headers are not.
func TestHeadersWithSecretsAreCredentials(t *testing.T) {
	for name, want := range map[string]bool{
		"Authorization": true, "proxy-authorization": true, "Cookie": true, "X-Api-Key": true, "apikey": true,
		"X-Auth-Token":   true,
		"X-Gitlab-Token": true, "Private-Token": true, "X-Amz-Security-Token": true, "X-Goog-Api-Key": true,
		"X-Auth-Key": true, "X-Secret": true,
		"X-User": false, "User-Agent": false, "X-Forwarded-For": false, "X-Request-Id": false,
	} {
		if got := option.CredentialHeader(name); got != want {
			t.Errorf("CredentialHeader(%q) = %v, want %v", name, got, want)
		}
	}
}

// A cost that never passes, and SynchronousCommit without Durable, each have a warning that names the
// setting.
func TestPointlessSettingsHaveWarnings(t *testing.T) {
	for _, test := range []struct {
		limit ratelimit.Limit
		cost  int64
		want  string // the settings with a warning
	}{
		{limit: ratelimit.Limit{Events: 10}, cost: 10},
		{limit: ratelimit.Limit{Events: 10}, cost: 11, want: "cost "},
		{limit: ratelimit.Limit{Events: 10}},
		{limit: ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Events: 10, Burst: 20}, cost: 20},
		{limit: ratelimit.Limit{Events: 10, SynchronousCommit: true}, cost: 1, want: "synchronous_commit "},
		{limit: ratelimit.Limit{Events: 10, SynchronousCommit: true, Durable: true}, cost: 1},
		{limit: ratelimit.Limit{Events: 10, SynchronousCommit: true}, cost: 11,
			want: "synchronous_commit cost "},
	} {
		l, got := settings.ConfiguredLimit{Limit: test.limit, Cost: test.cost}, ""
		for _, w := range l.Warnings() {
			got += w.Field + " "
		}
		if got != test.want {
			t.Errorf("%+v with cost %d has warnings about %q, want %q", test.limit, test.cost, got, test.want)
		}
	}
}

// Resolve completes the settings of a store with defaults, so that stores with the same effective settings
// are equal. pool_max_conns in the DSN replaces the default of MaxConns, DATABASE_URL a missing DSN, and
// PG_RATELIMIT_DISABLE_AUTO_MIGRATE overrides AutoMigrate.
func TestResolveCompletesSettings(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "")
	defaults := settings.Connection{
		DSN:                "postgres://h/db",
		AutoMigrate:        true,
		CleanupProbability: 0.1,
		RememberedRefusals: true,
	}
	resolve := func(change func(s *settings.Connection)) settings.Connection {
		t.Helper()
		s := defaults
		change(&s)
		s, err := s.Resolve("here,")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	plain := resolve(func(*settings.Connection) {})
	if s := resolve(func(s *settings.Connection) { s.MaxConns = 8 }); s != plain {
		t.Errorf("with max_conns set to its default, the store is %+v, want %+v", s, plain)
	}
	one := resolve(func(s *settings.Connection) { s.DSN = "memory" })
	other := resolve(func(s *settings.Connection) { s.DSN, s.MaxConns = "memory", 3 })
	if one != other {
		t.Errorf("stores in memory are %+v and %+v, want the same", one, other)
	}
	if s := resolve(func(s *settings.Connection) { s.DSN = "host=h pool_max_conns=2" }); s.MaxConns != 0 {
		t.Errorf("with pool_max_conns in the DSN, MaxConns is %d, want 0", s.MaxConns)
	}
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "true")
	if s := resolve(func(*settings.Connection) {}); s.AutoMigrate {
		t.Error("AutoMigrate is true, want the false of the environment")
	}
	t.Setenv("DATABASE_URL", "postgres://env/db")
	if s := resolve(func(s *settings.Connection) { s.DSN = "" }); s.DSN != "postgres://env/db" {
		t.Errorf("the DSN is %q, want the one of the environment", s.DSN)
	}
}

// Without a DSN in the configuration or the environment, the error is about dsn. An invalid value of an
// environment variable is an error that names the variable.
func TestInvalidEnvironmentIsRefused(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	_, err := settings.Connection{}.Resolve("here,")
	checkField(t, err, "dsn", "")
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "perhaps")
	_, err = settings.Connection{DSN: "memory"}.Resolve("here,")
	if !strings.Contains(fmt.Sprint(err), "PG_RATELIMIT_DISABLE_AUTO_MIGRATE") {
		t.Errorf("error %v, want one that names PG_RATELIMIT_DISABLE_AUTO_MIGRATE", err)
	}
}

// MaxAudit returns the audit that records more requests.
func TestMaxAuditRecordsMoreRequests(t *testing.T) {
	ordered := []option.Audit{
		{Level: option.AuditOff}, {Level: option.AuditDenied}, {Level: option.AuditSample, Share: 0.1},
		{Level: option.AuditSample, Share: 0.2}, {Level: option.AuditAll},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := option.MaxAudit(a, b), ordered[max(i, j)]; got != want {
				t.Errorf("MaxAudit(%+v, %+v) = %+v, want %+v", a, b, got, want)
			}
		}
	}
}
