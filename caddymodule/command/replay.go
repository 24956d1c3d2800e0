package command

import (
	"math"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

var replayCommand = entry{
	use:   "replay --rule RULE [SETTING=VALUE ...] [--since 7d]",
	short: "Shows what other limits of a rule would have done to the recorded requests",
	long: `Decides the requests in the audit log again, with other limits of a rule, and shows how many
would have been refused, beside what really happened. Nothing in the database changes. The
limits count by the code of the proxies, at the time of each request.

Settings are those of "rules set" that are about limits; the others stay as they are now. The
overrides for users, keys and tiers hold as they are now, also where a setting names their
limit: "rules set" does not change them either. The tier is that of the recorded request.

The audit log must have the requests that passed: "audit all" or "audit sample". A row of a
sample counts as all the requests that it stands for, at once. So do refusals that are one row
because they came within the same second, at the time of the first.

The counters begin empty. So for the time of the longest window the replay refuses less than
the limits would have. Requests that another limit refused, and requests that were blocked or
rejected, were not charged and do not count. With "audit_address prefix" or "audit_address off"
the audit log has no full addresses, so a rule that counts by address counts several clients as
one. In reality, a client that is refused may send less, or more; the replay has only what it
did send.`,
	example: `  caddy pg-ratelimit replay --rule free per_hour=500
  caddy pg-ratelimit replay --rule free per_hour=500 algorithm=token_bucket burst=20 --since 24h
  caddy pg-ratelimit replay --rule protect limit.burst=50/10s --since 2026-11-20 --until 2026-11-27 --json`,
	of:    ofAll,
	flags: append([]flag{{name: "rule", value: "", usage: "the rule", needed: true}, most(10)}, period("7d", "requests")...),
	do: func(c *call) error {
		q := admin.ReplayQuery{Period: c.times, Rule: c.text("rule"), Settings: c.args, Most: c.number("number")}
		r, err := c.db.Replay(c.ctx, &q)
		return show(c, r, err, addReplay)
	},
}

// addReplay adds a replay: the limits, the numbers, what they do not say, and the counters of which
// most changes.
func addReplay(p *page, r *admin.Replay) {
	p.print("rule    %s\nlimits  %s\nfrom    %s\nuntil   %s\n\n", text(r.Rule), limits(r.Limits), moment(r.From), moment(r.Until))
	var list table
	for i, o := range []admin.ReplayCounts{r.Happened, r.Replayed} {
		counts := fields[admin.ReplayCounts]("PASSED passed, REFUSED refused, COUNTERS REFUSED counters_refused, USERS REFUSED users_refused")(&o)
		list.addRow(append(row{"", []string{"what happened", "with these limits"}[i], "REQUESTS", r.Requests}, counts...))
	}
	p.table(list)
	p.print("\n%s\n", strings.Join(caveats(r), "\n"))
	addSection(p, "The counters that change most:", r.Changed, fields[admin.ReplayedCounter](
		"KEY key, USER user, REQUESTS requests, REFUSED refused, WITH THESE LIMITS replayed_refused"))
}

// caveats say what is to be known about the numbers.
func caveats(r *admin.Replay) []string {
	all := []string{"The counters begin empty: until " + moment(r.WarmUntil) + " the replay refuses less than these limits would have."}
	if !r.WarmUntil.Before(r.Until) {
		all[0] = "The counters begin empty, and the longest window is not over by the end: the replay refuses less than these limits would have."
	}
	all = append(all, "The requests are from "+moment(r.First)+" to "+moment(r.Last)+".")
	if r.Weight > 1 {
		all = append(all, "The numbers are estimates: one row of the sample stands for up to "+cell(int64(math.Round(r.Weight)))+" requests at once.")
	}
	for i := range r.Limits {
		l := &r.Limits[i]
		if l.Text("on_exceed") == "overage" {
			all = append(all, "The limit "+text(l.Text("name"))+" counts overage and never refuses.")
		} else if amount := capacity(l); r.Weight > 1 && amount < 10*r.Weight {
			all = append(all, "The sample is too small for the limit "+text(l.Text("name"))+": "+cell(int64(amount))+" is less than 10 rows of it.")
		}
	}
	for _, left := range []struct {
		n    int64
		what string
	}{
		{r.Shadow, "requests were let pass by the rule as a shadow rule, which would have refused them."},
		{r.ByOthers, "requests that other limits refused are left out."},
		{r.Unknown, "requests that the rule refused by a limit of 0 are left out: they have no counter."},
	} {
		if left.n > 0 {
			all = append(all, cell(left.n)+" "+left.what)
		}
	}
	return all
}

// capacity is the most that a limit lets pass at once.
func capacity(l *admin.Row) float64 {
	if l.Get("events") == nil {
		return math.Inf(1)
	}
	most, hasBurst := l.Get("burst").(int64)
	if !hasBurst {
		most = l.Get("events").(int64)
	}
	return float64(most)
}
