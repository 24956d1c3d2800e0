package reports

import (
	_ "embed"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// eventTrigger switches row level security on for each new table of a site, as Supabase's documents propose.
//
//go:embed testdata/event_trigger.sql
var eventTrigger string

var hidden = []report{
	{"F31", "planetscale/migration-scripts#56; supabase/agent-skills#408", []site{{
		schema: eventTrigger, handler: "dsn DSN&search_path=FAKE&options=-c%20role%3DID",
		policy: withKey + "\nwithout_key anonymous", zones: []string{"limit 100 1h"},
		sql: `SET search_path = "FAKE"; SELECT rate_limit_grant('ID', 'proxy');
			SELECT rate_limit_rule('ID', tiers => '{anonymous}', count_by => '{ip}', per_hour => 5);
			SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed}');`,
		asks: []ask{{n: 6, want: "503×6"}, {headers: "X-Api-Key: KEY", want: "503×1"}},
		check: func(v *visit) {
			own := v.in(v.id)
			v.Cleanup(func() {
				cluster.Execute(v, own.dsn, v.fill(`DROP OWNED BY "ID"; DROP ROLE "ID"`))
			})
			sentence := cluster.Query[string](v, own.dsn, "SELECT rate_limit_hidden()")
			for _, name := range []string{"migrate", "state"} {
				if out := own.command(name); !strings.Contains(out, sentence) {
					v.Errorf("%s printed %s, want %q", name, out, sentence)
				}
			}
			_, statement, _ := strings.Cut(sentence, "BYPASSRLS): ")
			cluster.Execute(v, own.dsn, statement)
			c := v.dial()
			ask := func(line, headers string, n int) string {
				return c.askOften(line, v.fill(headers), n)
			}
			v.Await("a decision", func() bool { return ask("GET /", "X-Api-Key: KEY", 1) == "200×1" })
			got := []string{ask("GET /", "", 6)}
			reports := strings.Count(v.proxy.Log(), "row-level security")
			cluster.Execute(v, own.dsn, `DO $$ DECLARE name text; BEGIN FOR name IN SELECT oid::regclass
				FROM pg_class
				WHERE relname ~ '^rate_limit_(changes|rules|rule_limits|users|api_keys|bans|nodes)$'
				AND relnamespace = '"`+v.id+`"'::regnamespace LOOP
				EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', name); END LOOP; END $$`)
			v.Await("a failed poll", func() bool {
				return strings.Count(v.proxy.Log(), "row-level security") > reports
			})
			got = append(got, ask("GET /", "X-Forwarded-For: 203.0.113.77", 6),
				ask("GET /", "X-Api-Key: KEY", 1), ask("GET /closed", "", 1))
			check.Equal(v, "the statuses after it was switched off, and on again", got,
				"[200×5 429×1 200×5 429×1 200×1 403×1]")
		},
	}}},
}
