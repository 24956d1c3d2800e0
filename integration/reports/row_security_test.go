package reports

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// eventTrigger switches row level security on for each new table of a site, as Supabase's documents propose.
const eventTrigger = `CREATE FUNCTION switch_on() RETURNS event_trigger LANGUAGE plpgsql AS $$
	DECLARE c record; BEGIN FOR c IN SELECT * FROM pg_event_trigger_ddl_commands()
		WHERE schema_name = 'FAKE' AND command_tag = 'CREATE TABLE' LOOP
	EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', c.object_identity); END LOOP; END $$;
	CREATE EVENT TRIGGER "ID" ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION switch_on();
	DO $$ BEGIN CREATE ROLE "ID"; EXCEPTION WHEN duplicate_object THEN NULL; END $$;`

var hidden = []report{
	{"F31", "planetscale/migration-scripts#56; supabase/agent-skills#408", []site{{
		schema: eventTrigger, handler: "dsn DSN&search_path=FAKE&options=-c%20role%3DID",
		policy: withKey + "\nwithout_key anonymous", zones: []string{"limit 100 1h"},
		sql: `SET search_path = "FAKE"; SELECT rate_limit_grant('ID', 'proxy');
			SELECT rate_limit_rule('ID', tiers => '{anonymous}', count_by => '{ip}', per_hour => 5);
			SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed}');`,
		asks: []ask{{n: 6, want: "503×6"}, {headers: "X-Api-Key: KEY", want: "503×1"}},
		check: func(t *testing.T, p *proxy, id string, _ []*harness.Response) {
			own := *p
			own.dsn += "&search_path=" + id
			t.Cleanup(func() { cluster.Execute(t, own.dsn, `DROP OWNED BY "`+id+`"; DROP ROLE "`+id+`"`) })
			sentence := cluster.Query[string](t, own.dsn, "SELECT rate_limit_hidden()")
			for _, name := range []string{"migrate", "state"} {
				if out := own.command(t, name); !strings.Contains(out, sentence) {
					t.Errorf("%s: %s printed %s, want %q", id, name, out, sentence)
				}
			}
			_, statement, _ := strings.Cut(sentence, "BYPASSRLS): ")
			cluster.Execute(t, own.dsn, statement)
			c := dial(t, p.trusted, hostOf(id))
			ask := func(line, headers string, n int) string {
				counts := map[int]int{}
				for range n {
					counts[c.ask(t, line, p.fill(headers, id)).Status]++
				}
				return countText(counts)
			}
			p.Await(t, "a decision", func() bool { return ask("GET /", "X-Api-Key: KEY", 1) == "200×1" })
			got := []string{ask("GET /", "", 6)}
			reports := strings.Count(p.Log(), "row-level security")
			cluster.Execute(t, own.dsn, `DO $$ DECLARE name text; BEGIN FOR name IN SELECT oid::regclass
				FROM pg_class
				WHERE relname ~ '^rate_limit_(changes|rules|rule_limits|users|api_keys|bans|nodes)$'
				AND relnamespace = '"`+id+`"'::regnamespace LOOP
				EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', name); END LOOP; END $$`)
			p.Await(t, "a failed poll", func() bool {
				return strings.Count(p.Log(), "row-level security") > reports
			})
			got = append(got, ask("GET /", "X-Forwarded-For: 203.0.113.77", 6),
				ask("GET /", "X-Api-Key: KEY", 1), ask("GET /closed", "", 1))
			if want := "[200×5 429×1 200×5 429×1 200×1 403×1]"; fmt.Sprint(got) != want {
				t.Errorf("%s: %v after it was switched off, and on again, want %s", id, got, want)
			}
		},
	}}},
}
