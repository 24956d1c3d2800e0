package command

import (
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

var changesCommand = entry{
	use:   "changes [--since 1h] [-n 100]",
	short: "Lists the changes of the policy, the latest first",
	long: `Lists the changes of the policy with the role that made each, the latest first. The database
keeps changes for 30 days. --json has the rows before and after.`,
	example: `  caddy pg-ratelimit changes
  caddy pg-ratelimit changes --since 7d -n 1000 --json`,
	flags: []flag{{name: "since", value: "1h", read: aDuration, usage: "changes of the last 30m, 24h, 7d …"}, most(100)},
	do: func(c *call) error {
		changes, err := c.db.Changes(c.ctx, get[time.Duration](c, "since"), c.number("number"))
		return showList(c, changes, err, func(change *admin.Change) row {
			what := strings.Join(change.What, ", ")
			return row{"ID", change.Seq, "AT", change.At, "BY", change.By, "KIND", change.Kind, "WHICH", which(change), "WHAT", what}
		}, "Nothing was changed.")
	},
	commands: []entry{{
		use:   "undo ID",
		short: "Takes a change of the policy back",
		long: `Takes back what the command or the transaction of a change did to the policy, if nothing newer has changed the
same rows or refers to them: what it made is deleted, and what it deleted or changed is as before. ID is that of one of its lines.`,
		example: "  caddy pg-ratelimit changes undo 17",
		args:    []reader{numberOf("changes")},
		do: func(c *call) error {
			id := get[int64](c, "ID")
			rows, err := c.db.Undo(c.ctx, id)
			return show(c, map[string]int64{"undone": id, "rows": rows}, err, func(p *page, _ map[string]int64) {
				p.print("The change %d is taken back. Rows: %d.\n", id, rows)
			})
		},
	}},
}

// digestShown is how much of a digest people see.
const digestShown = 12

// which is what was changed. A key has its id, or, if the line is too old to tell it, the begin of its digest.
func which(change *admin.Change) string {
	ref := change.Ref
	if ref == nil {
		return "all"
	}
	if change.KeyID != nil {
		if change.Kind == "key" {
			return cell(change.KeyID)
		}
		return "key/" + cell(change.KeyID)
	}
	at := strings.LastIndexByte(*ref, '/') + 1
	digest := (*ref)[at:]
	if len(digest) == 64 && strings.Trim(digest, "0123456789abcdef") == "" {
		return text((*ref)[:at] + digest[:digestShown] + "…")
	}
	return text(*ref)
}
