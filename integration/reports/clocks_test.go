package reports

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// startClocks starts a server with a clock that is 30 days ahead, and one for which it is an hour before the
// end of an earlier month, by more than 30 days. They have the user ann, and a budget by month in Berlin.
func startClocks(t *testing.T, ann string) map[string]*cluster.Cluster {
	t.Helper()
	const month = 30 * 24 * time.Hour
	now := time.Now().UTC()
	before := now.Add(-month - 24*time.Hour)
	end := time.Date(before.Year(), before.Month(), 1, -1, 0, 0, 0, time.UTC)
	servers := map[string]*cluster.Cluster{}
	for name, late := range map[string]time.Duration{"AHEAD": -month, "BEHIND": now.Sub(end)} {
		f := cluster.NewFaults(t)
		check.OK(t, f.Set(late, false))
		servers[name] = cluster.Private(t, cluster.Options{Env: f.Env})
		cluster.Execute(t, servers[name].DSN("postgres"), schema.File+ann+`
			SELECT rate_limit_rule('budget', tiers => '{free}',
				limits => '{month=50 money/1mo calendar Europe/Berlin}'), rate_limit_price('m', 1, 1)`)
	}
	return servers
}

// clocked returns the DSN of a server of startClocks, if there is one.
func (p *proxy) clocked(name string) string {
	if c := p.clocks[name]; c != nil {
		return c.DSN("postgres")
	}
	return ""
}

// onClock is a site whose database has another clock than the proxy, with a limit of tokens.
func onClock(name, state string) site {
	const prompt = `POST / {"max_tokens":9}`
	return site{handler: "dsn " + name + "\ntimeout 5s\non_error allow", upstream: usesTwo,
		zones: []string{"key all\nlimit 1000000 1h\nalgorithm fixed_window\nunit tokens"},
		asks:  []ask{{n: 50, line: prompt, want: "200×50"}},
		check: func(v *visit) {
			dsn := v.clocked(name)
			settled := func(what, want string) {
				v.Await(what+" in the days of the server", func() bool {
					return cluster.Query[string](v, dsn, `SELECT concat_ws(' ', count(*), sum(c.units))
						FROM rate_limit_ledger_rows(now() - interval '1 h', now() + interval '1 h') r,
						jsonb_to_recordset(r.charges) AS c(prefix text, units numeric)
						WHERE c.prefix = $1 AND r.day >= ((now() - interval '1 h') AT TIME ZONE 'UTC')::date
							AND r.day <= (now() AT TIME ZONE 'UTC')::date`, v.id) == want
				})
			}
			settled("50 prompts", "50 100")
			v.Await("the state of the clock", func() bool {
				return cluster.Query[bool](v, dsn, `SELECT EXISTS (SELECT FROM rate_limit_state
					WHERE state = 'wrong clock' AND node LIKE '%' || $1
						AND summary LIKE '%' || $2 || ' the clock of the server%')`, v.name, state)
			})
			check.OK(v, v.clocks[name].Pause())
			got := v.dial().ask(prompt, "").Status
			check.OK(v, v.clocks[name].Resume())
			check.Equal(v, "a prompt without a decision", got, http.StatusOK)
			settled("a prompt without a decision", "51 102")
		}}
}

// monthInBerlin checks that the budget and the invoice of ann are of one month, which has begun in Berlin,
// but not in UTC.
func monthInBerlin(v *visit) {
	dsn := v.clocked("BEHIND")
	const months = `SELECT concat_ws(' ', (now() AT TIME ZONE 'Europe/Berlin')::date,
		(SELECT string_agg(DISTINCT (i.period AT TIME ZONE 'Europe/Berlin')::text, ' ')
			FROM rate_limit_invoice('ann') i),
		(SELECT (u.resets_at AT TIME ZONE 'Europe/Berlin' - interval '1 month')::text
			FROM rate_limit_used_by('ann') u))`
	first := cluster.Query[string](v, dsn, "SELECT (now() AT TIME ZONE 'Europe/Berlin')::date::text")
	v.Await("the budget and the invoice to be of the month in Berlin", func() bool {
		return cluster.Query[string](v, dsn, months) == first+" "+first+" 00:00:00 "+first+" 00:00:00"
	})
}

var clocked = []report{
	{"F21", "JCISadmin/AI_Compliance#412; wontlost-ltd/chrono-synth-os#434", []site{{
		handler: "dsn BEHIND", policy: withKey, upstream: usesTwo,
		asks: []ask{{line: `POST / {"max_tokens":9,"model":"m"}`, headers: "X-Api-Key: KEY",
			want: "200×1"}},
		check: monthInBerlin,
	}}},
	{"F33", "ansible/awx#10744; dotCMS/core#37513", []site{
		onClock("AHEAD", "behind"), onClock("BEHIND", "ahead of"),
	}},
}
