package history_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// The privileges that docs/operating.md lists are enough for a proxy: it writes, lengthens a retention and
// does the upkeep. They do not let it shorten a retention: it says so.
func TestThePrivilegesOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	grant := regexp.MustCompile(`GRANT EXECUTE ON FUNCTION rate_limit_[^;]* TO `).FindString(string(text))
	if grant == "" {
		t.Fatal("docs/operating.md has no GRANT EXECUTE")
	}
	s := newSite(t)
	if err := history.Migrate(context.Background(), s.db()); err != nil {
		t.Fatal(err)
	}
	s.exec("REVOKE CREATE ON SCHEMA public FROM public")
	role := "h_" + s.text("SELECT current_database()")
	s.exec("CREATE ROLE " + role)
	t.Cleanup(func() { s.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	s.exec(grant + role)

	proxy := siteOn(t, s.dsn+"&options=-c%20role%3D"+role)
	w := proxy.writer(
		history.Settings{Retention: []settings.Retention{{What: "metrics_day", Keep: 3000 * 24 * time.Hour},
			{What: "audit", Keep: 48 * time.Hour}}})
	history.Add(w, &history.Record{Time: time.Now(), Outcome: history.Limited, Prefix: "p", User: "anna",
		Status: 429, Audit: auditAll})
	flush(t, w)
	if _, err := history.Upkeep(context.Background(), proxy.db(), time.Now()); err != nil {
		t.Error(err)
	}
	same(t, "rows", s.text("SELECT (SELECT count(*) FROM rate_limit_audit), (SELECT count(*) FROM "+
		"rate_limit_metrics WHERE user_id = 'anna')"), "1 3")
	same(t, "retention",
		s.text("SELECT string_agg(what || ' ' || keep, ', ' ORDER BY what) FROM rate_limit_retention WHERE "+
			"what IN ('audit', 'metrics_day')"), "audit 90 days, metrics_day 3000 days")
	same(t, "reports", strings.Join(proxy.reports(), "\n"),
		"the retention of the history: audit is kept for 90 days: the role "+role+
			" may not shorten that; an administrator can, with UPDATE rate_limit_retention "+
			"SET keep = '2 days' "+
			"WHERE what = 'audit'")
}
