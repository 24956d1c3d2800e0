package tables_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A rule keeps its last limit: if each of two transactions deletes one of the two limits of a rule, the
// second transaction is refused.
func TestLastLimitStays(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("SELECT rate_limit_rule('two', per_hour => 1, per_day => 2)")
	other := cluster.Connect(t, s.DSN)
	ctx := context.Background()
	run := func(sql string) error { _, err := other.Exec(ctx, sql); return err }
	s.Exec("BEGIN; DELETE FROM rate_limit_rule_limits WHERE name = 'per_hour'; SET CONSTRAINTS ALL IMMEDIATE")
	if err := errors.Join(run("BEGIN"),
		run("DELETE FROM rate_limit_rule_limits WHERE name = 'per_day'")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run("COMMIT") }()
	watcher := sqltest.Connect(t, s.DSN)
	await.Within(t, time.Minute, "the second transaction waits for the first", func() bool {
		return watcher.Query("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE "+
			"NOT l.granted AND a.datname = current_database()") != "0"
	})
	s.Exec("COMMIT")
	var failure *pgconn.PgError
	if err := <-ended; !errors.As(err, &failure) ||
		!strings.Contains(failure.Message, "a rule with the action limit must have") {
		t.Errorf("the second transaction: %v, want that a limit is missing", err)
	}
	s.Expect("SELECT name FROM rate_limit_rule_limits", "per_day")
}

// The database accepts only hosts, paths and parts of a key that proxies accept, and all paths that proxies
// accept.
func TestDatabaseAndProxiesAcceptSamePatterns(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("SELECT rate_limit_rule('r', per_hour => 1)")
	random := rand.New(rand.NewSource(1))
	text := func(parts []string) string {
		all := ""
		for n := 1 + random.Intn(5); n > 0; n-- {
			all += parts[random.Intn(len(parts))]
		}
		return all
	}
	paths := []string{"/", "/", "/a", "/*", "*", ".", "..", "/.", "/..", "%", "%2", "%2F", "%zz", `\`, "?",
		"//", "b", "ü", ";x=1", "/..a", " "}
	hosts := []string{"a", "example.com", "*.", "*", ".", ":", "::", "1", "ff", "[", "]", "[::1]",
		"192.0.2.1", ":80", "-", "_", "Z"}
	counts := []string{"user", "key", "tier", "ip", "ip/128", "host", "route", "header:X", "header:x-Y",
		"header:", "all", "|", "|", "|", "x"}
	accepted := map[string]int{}
	steps := 4000
	if testing.Short() {
		steps = 1000
	}
	for i := 0; i < steps; i++ {
		rule := policy.Rule{Name: "r",
			Limits: []policy.RuleLimit{{Name: "l", Limit: ratelimit.Limit{Events: 1, Window: 1e9}}}}
		column, value := "paths", "/"+text(paths)
		switch i % 3 {
		case 0:
			rule.Paths = []string{value}
		case 1:
			column, value = "hosts", text(hosts)
			rule.Hosts = []string{value}
		case 2:
			column, value = "count_by", text(counts)
			rule.CountBy = []string{value}
		}
		wrong := policy.Compile([]policy.Rule{rule}, nil, nil, 0).Unusable()
		_, err := s.Conn.Exec(context.Background(),
			fmt.Sprintf("UPDATE rate_limit_rules SET %s = ARRAY[$1::text]", column), value)
		if err == nil && len(wrong) > 0 {
			t.Fatalf("%s %q: the database accepts it, and proxies do not: %v", column, value, wrong[0].Err)
		}
		// For hosts, only the database is stricter: proxies accept any host that a client could send.
		if column == "paths" && err != nil && len(wrong) == 0 {
			t.Fatalf("%s %q: proxies accept it, and the database does not: %v", column, value, err)
		}
		if err == nil {
			accepted[column]++
		}
	}
	if accepted["paths"] < steps/40 || accepted["hosts"] < steps/40 {
		t.Errorf("accepted: %v, want at least %d paths and hosts", accepted, steps/40)
	}
}

// A rule refuses to settle by the headers by which a configuration refuses to, in upper and lower case.
func TestRulesRefuseTheHeadersThatConfigurationsRefuse(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("SELECT rate_limit_rule('r', per_hour => 1)")
	for header := range strings.FieldsSeq(`
		X-Cost X-Date Contents Tokens Server-Timing X-Content-Length Grpc Etags Grpc-Status
		grpc-message GRPC-X Content-Length content-type Access-Control-Allow-Origin
		Sec-Fetch-Mode Proxy-Authenticate Set-Cookie Trailer Transfer-Encoding Connection
		Keep-Alive Upgrade TE Date LOCATION Vary ETag Last-Modified Cache-Control Expires Age
		Pragma Allow Accept-Ranges WWW-Authenticate Authorization Retry-After
		Strict-Transport-Security Link Server Via Warning`) {
		settle := "header " + header
		_, want := option.ParseCostSource(settle)
		_, err := s.Conn.Exec(t.Context(), "SELECT rate_limit_rule('r', settle => $1)", settle)
		if (err == nil) != (want == nil) {
			t.Errorf("%s: a rule gets the error %v, and a configuration %v", settle, err, want)
		}
		const text = ": must take a header of its own that clients do not need"
		if err != nil && !strings.Contains(err.Error(), "settle: \""+settle+"\""+text) {
			t.Errorf("%s: got the error %v, want one with the setting, its value and%s", settle, err, text)
		}
	}
}
