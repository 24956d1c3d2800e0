package command

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// recording says which requests the audit log has.
const recording = `The audit log has what the configurations of the proxies say: with "audit denied", the
default of a configuration with "history", only what was refused.`

// noneRecorded is printed instead of a list of what the audit log has.
func noneRecorded(what string, p admin.Period) string {
	return "No such " + what + " is in the audit log from " + moment(p.From) + " until " + moment(p.Until) + ".\n" + recording
}

var auditCommand = entry{
	use:   "audit [--follow] [--user USER] [--rule RULE | --prefix PREFIX] [--decision limited] [--since 1h]",
	short: "Lists what happened to requests, the newest first",
	long: `Lists rows of the audit log, the newest first: of the last hour, unless --since says
otherwise. Flags that are given together must all hold. A row with a count above 1 stands for
as many equal refusals within a second. LIMIT is the limit that refused the request, or the one
with the least left.

With --follow (-f) the newest is the last, and what proxies write from then on follows until
Ctrl-C: with --json, one object a line. What they write more than two minutes late is left out.

` + recording,
	example: `  caddy pg-ratelimit audit
  caddy pg-ratelimit audit --follow --rule free
  caddy pg-ratelimit audit --user acme --decision limited --since 24h
  caddy pg-ratelimit audit --rule free --address 192.0.2.0/24 -n 200
  caddy pg-ratelimit audit --prefix web --host api.example.com --since 2026-11-27 --until 2026-11-28 --json`,
	of: ofHistory,
	flags: append([]flag{
		{name: "user", value: "", usage: "of this user"},
		aKey("with the API key of this number"),
		{name: "prefix", value: "", usage: "by the limit of this prefix in a configuration, or by rule/RULE or rule/RULE/LIMIT"},
		{name: "rule", value: "", usage: "by this rule"},
		{name: "decision", value: "", usage: "one or more of " + strings.Join(admin.Decisions(), ", ") + ", with commas between them",
			choices: admin.Decisions(), list: true},
		{name: "address", value: "", read: aNetwork, usage: "from this address or network"},
		{name: "host", value: "", usage: "to this host"},
		{name: "node", value: "", usage: "decided by this proxy"},
		{name: "follow,f", value: false, usage: "go on with rows that are new, until Ctrl-C"},
		most(50),
	}, period("1h", "decided")...),
	alone: []string{"follow until", "prefix rule"},
	do: func(c *call) error {
		q := &admin.AuditQuery{
			Period: c.times, User: c.text("user"), KeyID: get[int64](c, "key-id"), Prefix: c.text("prefix"), Address: get[netip.Prefix](c, "address"),
			Host: c.text("host"), Node: c.text("node"), Most: c.number("number"),
		}
		if rule := c.text("rule"); rule != "" {
			q.Prefix = "rule/" + rule
		}
		if decisions := c.text("decision"); decisions != "" {
			q.Decisions = strings.Split(decisions, ",")
		}
		if c.is("follow") {
			return c.follow(q)
		}
		found, err := c.db.Audit(c.ctx, q)
		return show(c, found, err, func(p *page, found []admin.Row) {
			addList(p, found, auditRow, noneRecorded("decision", c.times))
		})
	},
}

func auditRow(a *admin.Row) row {
	limit, left := a.Text("prefix"), none
	if name := a.Text("limit"); name != "" {
		limit += "/" + name
	}
	if a.Get("quota") != nil && a.Get("remaining") != nil {
		left = fmt.Sprintf("%d of %d", a.Get("remaining"), a.Get("quota"))
	}
	return row{
		"TIME", a.Get("time"), "DECISION", a.Get("decision"), "REASON", a.Get("reason"), "LIMIT", limit, "KEY", a.Get("key"),
		"USER", a.Get("user"), "ADDRESS", a.Get("address"),
		"REQUEST", strings.TrimSpace(a.Text("method") + " " + a.Text("host") + a.Text("path")), "STATUS", a.Get("status"),
		"COUNT", counted(a.Get("count").(int64), a.Get("weight").(float64)), "LEFT", left, "NODE", a.Get("node"),
	}
}

// counted is how many requests a row stands for: "about" if it is of a sample.
func counted(count int64, weight float64) string {
	if weight == 1 {
		return cell(count)
	}
	return "about " + cell(int64(float64(count)*weight+0.5))
}

var usageCommand = entry{
	use:   "usage USER [--month 2026-11 | --since 7d]",
	short: "Shows what a user did, by day, by API key and by limit",
	long: `Shows how many requests a user made on each day and with each API key, and how many were refused.
The default is the current month. Months and days are in UTC, and a day counts as a whole. For
each limit, CHARGED are the units that it charged before the requests that passed, and SETTLED
what they really cost.

Proxies with a history count every request of a user, whatever is in the audit log.`,
	example: `  caddy pg-ratelimit usage acme
  caddy pg-ratelimit usage acme --month 2026-11
  caddy pg-ratelimit usage acme --since 7d --json`,
	of:    ofHistory,
	flags: append([]flag{{name: "month", value: "", usage: "a month such as 2026-11 (default the current one)"}}, period("", "the days")...),
	alone: []string{"month since", "month until"},
	do: func(c *call) error {
		p, err := by(c, admin.ParseMonth, "--month", c.text("month"))
		if c.text("since") != "" {
			p = c.times
		} else if c.text("until") != "" {
			err = errNoSince
		}
		if err != nil {
			return err
		}
		usage, err := c.db.UsageOf(c.ctx, c.args[0], p)
		return show(c, usage, err, addUsage)
	},
}

func addUsage(p *page, u admin.UserUsage) {
	const used = "REQUESTS requests, REFUSED refused, LAST last_request"
	days := u.Days
	if len(days) > 0 {
		u.Total.Set("day", "total")
		days = append(days, u.Total)
	}
	addList(p, days, fields[admin.Row]("DAY day, "+used), "No request of the user "+text(u.User)+" was counted from "+u.First+" to "+u.Last+".")
	addSection(p, "By API key:", u.Keys, func(k *admin.Row) row {
		which := cell(k.Get("key_id"))
		if which == "0" {
			which = "no key"
		}
		return append(row{"KEY ID", which}, fields[admin.Row](used)(k)...)
	})
	addSection(p, "By limit:", u.Limits, fields[admin.Row]("PREFIX prefix, LIMIT limit_name, "+
		"CHARGED charged, SETTLED settled, "+used))
}

var changesCommand = entry{
	use:   "changes [--since 1h] [-n 100]",
	short: "Lists the changes of the policy, the latest first",
	long: `Lists the changes of the policy with the role that made each, the latest first. The database
keeps changes for 30 days. --json has the rows before and after.`,
	example: `  caddy pg-ratelimit changes
  caddy pg-ratelimit changes --since 7d -n 1000 --json`,
	flags: []flag{{name: "since", value: "1h", read: aDuration, usage: "changes of the last 30m, 24h, 7d …"}, most(100)},
	empty: says("Nothing was changed."),
	list: func(c *call) ([]line, error) {
		changes, err := c.db.Changes(c.ctx, get[time.Duration](c, "since"), c.number("number"))
		return lines(changes, err, fields[admin.Row]("ID seq, AT at, BY by, KIND kind, WHICH which, WHAT what"))
	},
}
