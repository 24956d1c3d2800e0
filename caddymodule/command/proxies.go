package command

import (
	"context"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

var nodesCommand = entry{
	use:   "nodes",
	short: "Lists the proxies, and whether each has applied all changes",
	long: `Lists the proxies that count in the database, and whether each has applied all changes of the policy and obeys a
pause of the limits. A proxy that cannot decide lacks privileges: PROBLEMS has the statements that give them. One that
has ended, or has not been seen for 10 seconds and is gone, is deleted from the list after a day.`,
	example: `  caddy pg-ratelimit nodes
  caddy pg-ratelimit nodes --json`,
	of: ofCounters,
	do: func(c *call) (err error) {
		nodes := from(c, ofCounters, &err, (*admin.Database).Nodes)
		pause := from(c, ofCounters, &err, (*admin.Database).Paused)
		warnings := from(c, ofPolicy, &err, (*admin.Database).RuleWarnings)
		return show(c, nodes, err, func(p *page, nodes []admin.Node) {
			if pause != nil {
				addPause(p, pause)
			}
			addList(p, nodes, nodeRow, "No proxy counts here.")
			addSection(p, "Rules that may not mean what they say:", warnings, fields[admin.RuleWarning]("RULE rule, WARNING warning"))
		})
	},
}

func nodeRow(n *admin.Node) row {
	behind, problems := none, n.Problems
	if n.Live && n.Cannot != nil {
		problems = append([]string{*n.Cannot}, problems...)
	}
	if n.Policy {
		behind = "unknown"
	}
	local := none
	if n.LocalFrom != nil && n.LocalUntil != nil {
		local = span(n.LocalUntil.Sub(*n.LocalFrom).Seconds()) + " until " + moment(*n.LocalUntil)
	}
	return row{
		"NODE", n.Node, "REGION", n.Region, "VERSION", n.Version, "STATE", n.State(), "EPOCH", n.Epoch, "CHANGES BEHIND", or(n.Behind, behind),
		"PAUSED", n.Paused, "LOCAL", local, "SEEN", span(n.SecondsAgo) + " ago", "PROBLEMS", strings.Join(problems, "; "),
	}
}

// from asks the database of a dataset, unless a question before has failed.
func from[T any](c *call, of dataset, err *error, question func(db *admin.Database, ctx context.Context) (T, error)) (answer T) {
	if *err == nil {
		*err = c.open(of)
	}
	if *err == nil {
		answer, *err = question(c.db, c.ctx)
	}
	return answer
}

func addPause(p *page, pause *admin.Pause) {
	p.print("All limits of this database are paused until %s by %s", moment(pause.Until), text(pause.PausedBy))
	if pause.Reason != nil {
		p.print(": %s", text(*pause.Reason))
	}
	p.print(". Bans and block rules hold.\n")
}

var pauseCommand = entry{
	use:   "pause [--for 1h]",
	short: "Suspends all limits of the database for a while",
	long: `Suspends the limits of rules and of configurations on the database: requests pass them, are not charged and get no
X-RateLimit headers. Bans and block rules hold. All proxies obey within a second. The pause ends by itself, or with:
caddy pg-ratelimit resume. A proxy that cannot reach the database meanwhile keeps the pause until its end.`,
	example: `  caddy pg-ratelimit pause
  caddy pg-ratelimit pause --for 20m --reason outage`,
	of: ofCounters,
	flags: []flag{
		{name: "for", value: "1h", read: lasting, usage: "how long, such as 20m or 2h"},
		{name: "reason", value: "", usage: "for people; clients do not see it"},
	},
	do: func(c *call) error {
		pause, err := c.db.Pause(c.ctx, get[time.Duration](c, "for"), c.text("reason"))
		return show(c, pause, err, addPause)
	},
}

var resumeCommand = entry{
	use:     "resume",
	short:   "Ends a pause of the limits",
	example: "  caddy pg-ratelimit resume",
	of:      ofCounters,
	do: func(c *call) error {
		return show(c, map[string]bool{"resumed": true}, c.db.Resume(c.ctx), func(p *page, _ map[string]bool) { p.print("The limits apply again.\n") })
	},
}
