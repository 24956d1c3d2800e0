package command

import (
	"context"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

var nodesCommand = entry{
	use:   "nodes",
	short: "Lists the proxies, and whether each has applied all changes",
	long: `Lists the proxies that count in the database, and whether each has applied all changes of the policy.
A proxy that cannot decide lacks privileges: PROBLEMS has the statements that give them. One that
has ended, or has not been seen for 10 seconds and is gone, is deleted from the list after a day.`,
	example: `  caddy pg-ratelimit nodes
  caddy pg-ratelimit nodes --json`,
	of: ofCounters,
	do: func(c *call) (err error) {
		nodes := from(c, ofCounters, &err, (*admin.Database).Nodes)
		warnings := from(c, ofPolicy, &err, (*admin.Database).RuleWarnings)
		return show(c, nodes, err, func(p *page, nodes []admin.Node) {
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
		"LOCAL", local, "SEEN", span(n.SecondsAgo) + " ago", "PROBLEMS", strings.Join(problems, "; "),
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
