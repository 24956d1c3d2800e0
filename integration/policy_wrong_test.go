package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// expectAll asks all proxies, and fails the test for each answer with another status.
func expectAll(t *testing.T, what string, urls []string, status int, path string, headers ...string) {
	t.Helper()
	for _, url := range urls {
		if a := harness.Ask(t, harness.Get(url+path, headers...)); a.Status != status {
			t.Errorf("%s: %s answered %d %s, want %d", what, url+path, a.Status, a.Body, status)
		}
	}
}

// A change that no proxy can use, by a program that goes around the checks, leaves a blocked path
// blocked and a limit in force. The rows of the proxies name the rules.
func TestAWrongChangeOpensNothing(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, people+`
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/admin}');
		SELECT rate_limit_rule('none', count_by => '{all}', paths => '{/none}', per_hour => 0);`)
	urls := governedProxies(t, dsn)
	expectAll(t, "at first", urls, http.StatusForbidden, "/admin")
	expectAll(t, "at first", urls, http.StatusTooManyRequests, "/none")
	expectAll(t, "at first", urls, http.StatusOK, "/open")
	execute(t, dsn, `ALTER TABLE rate_limit_rules DISABLE TRIGGER rate_limit_usable; ALTER TABLE rate_limit_rule_limits DISABLE TRIGGER rate_limit_complete;
		UPDATE rate_limit_rules SET paths = '{/admin,/a%20b}' WHERE name = 'closed'; DELETE FROM rate_limit_rule_limits WHERE rule = 'none'`)
	await(t, "all proxies to name the rules", func() bool {
		return queryInt(t, dsn, `SELECT count(*) FROM rate_limit_nodes WHERE applied_seq >= (SELECT max(seq) FROM rate_limit_changes)
			AND cardinality(problems) = 2 AND problems[1] LIKE 'rule closed: paths: "/a\%20b": must be%(its last usable version applies)'`) == int64(len(urls))
	})
	expectAll(t, "after the wrong change", urls, http.StatusForbidden, "/admin")
	expectAll(t, "after the wrong change", urls, http.StatusTooManyRequests, "/none")
	execute(t, dsn, "UPDATE rate_limit_rules SET paths = '{/private}' WHERE name = 'closed'; DELETE FROM rate_limit_rules WHERE name = 'none'")
	await(t, "all proxies to obey", func() bool {
		return queryInt(t, dsn, `SELECT count(*) FROM rate_limit_nodes WHERE applied_seq >= (SELECT max(seq) FROM rate_limit_changes) AND problems = '{}'`) == int64(len(urls))
	})
	expectAll(t, "after the right change", urls, http.StatusOK, "/admin")
	expectAll(t, "after the right change", urls, http.StatusOK, "/none")
	expectAll(t, "after the right change", urls, http.StatusForbidden, "/private")
}

// A banned user that is renamed stays banned, and a tier that is renamed keeps its limits: before
// the change, and within a second after it.
func TestRenamesOpenNothing(t *testing.T) {
	dsn := policyDatabase(t, people+`
		SELECT rate_limit_rule('none', tiers => '{free}', per_hour => 0, status => 402);
		INSERT INTO rate_limit_bans (user_id) VALUES ('bob')`)
	urls := governedProxies(t, dsn)
	expectAll(t, "at first", urls, http.StatusForbidden, "/", "X-User", "bob")
	expectAll(t, "at first", urls, http.StatusPaymentRequired, "/", "X-User", "alice")
	renamed := watch(t, urls, "X-User", "robert")
	change(t, dsn, "UPDATE rate_limit_users SET user_id = 'robert' WHERE user_id = 'bob'", renamed, http.StatusOK, http.StatusForbidden)
	execute(t, dsn, "UPDATE rate_limit_tiers SET tier = 'gratis' WHERE tier = 'free'")
	for until := time.Now().Add(1500 * time.Millisecond); time.Now().Before(until) && !t.Failed(); {
		expectAll(t, "after the tier was renamed", urls, http.StatusPaymentRequired, "/", "X-User", "alice")
	}
}
