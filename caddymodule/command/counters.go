package command

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var usageRow = fields[admin.Usage]("PREFIX prefix, KEY key, USED used, OF quota=unlimited, PERCENT percent:percent, " +
	"RESETS resets, ALGORITHM algorithm")

var counterFields = fields[admin.Row]("PREFIX prefix, KEY key, TABLE durable:table, COUNT count, BEFORE prev_count, " +
	"SINCE window_start, TOKENS tokens:whole, REFILLED last_refill, HITS hits, EXPIRES expires_at")

func counterRow(c *admin.Row) row {
	used, quota := none, none
	if u, _ := c.Get("usage").(*admin.Usage); u != nil {
		used, quota = cell(u.Used), or(u.Quota, "unlimited")
	}
	return append(counterFields(c), "USED", used, "OF", quota)
}

// What top --since lists.
const (
	bySender = "sender"
	byPath   = "path"
)

var topCommand = entry{
	use:   "top [--prefix PREFIX] [--since 1h [--by path]] [-n 20]",
	short: "Lists the counters that are closest to their limits, or with --since the busiest senders",
	long: `Lists the counters of rules that are closest to their limits. --prefix restricts the list to
prefixes that begin with a text, such as rule/free or rule/free/per_hour. Any other prefix is
that of a limit in the configuration of a proxy: its counters with the highest counts come
first.

--since lists what the audit log has since then: the counters and users with the most requests,
and how many of these were refused. Then --prefix is rule/ for all rules, rule/RULE,
rule/RULE/LIMIT, or that of a limit in a configuration. A sample is counted as what it stands
for. ` + recording + `
So REQUESTS are then refusals only. With --by path, the list has the paths instead.`,
	example: `  caddy pg-ratelimit top
  caddy pg-ratelimit top --since 1h
  caddy pg-ratelimit top --prefix rule/free/ -n 5
  caddy pg-ratelimit top --prefix web`,
	of: ofCounters,
	flags: append([]flag{
		{name: "prefix", value: "", usage: "counters of this prefix only"},
		{name: "by", value: bySender, usage: "with --since: sender or path", choices: []string{bySender, byPath}},
		most(20),
	}, period("", "requests")...),
	list: func(c *call) ([]line, error) {
		prefix, most := c.text("prefix"), c.number("number")
		switch {
		case c.text("since") != "":
			if err := c.open(ofHistory); err != nil {
				return nil, err
			}
			return c.topSince(prefix, most)
		case c.text("by") == byPath:
			return nil, &ratelimit.FieldError{Field: "--by", Value: byPath, Want: "given with --since: counters have no paths. The metrics have them where the configuration says: route {path}"}
		case c.text("until") != "":
			return nil, errNoSince
		case !ofRules(prefix):
			counters, err := c.db.TopCounters(c.ctx, prefix, most)
			return lines(counters, err, counterRow)
		}
		usage, err := c.db.Top(c.ctx, prefix, most)
		return lines(usage, err, usageRow)
	},
	empty: func(c *call) string {
		switch {
		case c.text("since") != "":
			return noneRecorded("request", c.times)
		case !ofRules(c.text("prefix")):
			return "There are no counters."
		}
		return "Nothing is used."
	},
}

// ofRules reports whether a prefix is that of counters of rules.
func ofRules(prefix string) bool { return prefix == "" || strings.HasPrefix(prefix, "rule/") }

// topSince lists the senders, or the paths, of the most requests in a period.
func (c *call) topSince(prefix string, most int) ([]line, error) {
	by, columns := "senders", "PREFIX prefix, KEY key, USER user, REQUESTS requests, REFUSED refused, LAST last"
	if c.text("by") == byPath {
		by, columns = "paths", "PATH name, REQUESTS requests, REFUSED refused"
	}
	found, err := c.db.TopSince(c.ctx, by, c.times, prefix, most)
	return lines(found, err, fields[admin.Row](columns))
}

var getCommand = entry{
	use:   "get PREFIX KEY",
	short: "Shows a counter",
	long: `Shows the counter of a prefix and a key. The prefix of a rule's limit is rule/RULE/LIMIT. The
key may be one that is stored as a digest. KEY may be "-", to read it from standard input.`,
	example: `  caddy pg-ratelimit get rule/free/per_hour acme
  caddy pg-ratelimit get web 192.0.2.1
  caddy pg-ratelimit get per-key - < key.txt`,
	args:  []reader{aText, aSecret},
	of:    ofCounters,
	empty: says("There are no counters."),
	list: func(c *call) ([]line, error) {
		counters, err := c.db.Counters(c.ctx, c.args[0], get[string](c, "KEY"))
		return lines(counters, err, counterRow)
	},
}

var resetCommand = entry{
	use:   "reset PREFIX KEY",
	short: "Gives a key its full quota back",
	long: `Deletes the counter of a prefix and a key, as get finds it, so that the full quota is back. A
proxy that has refused the key within the last second may refuse it for up to a second more.`,
	example: `  caddy pg-ratelimit reset rule/free/per_hour acme
  caddy pg-ratelimit reset per-key - < key.txt`,
	args: []reader{aText, aSecret},
	of:   ofCounters,
	do: func(c *call) error {
		return c.changed(c.db.Reset(c.ctx, c.args[0], get[string](c, "KEY")), "counter of", c.args[0], "reset")
	},
}
