package command

import (
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

var rulesCommand = entry{
	use: "rules", kind: "rule",
	short: "Lists and changes rules",
	commands: []entry{{
		use:   "list",
		short: "Lists all rules in the order in which proxies try them",
		long: `Lists all rules in the order in which proxies try them, with their limits. Rules that
cannot be used are named below the list, with what they should be, and rules for tiers that
are not in rate_limit_tiers.`,
		example: `  caddy pg-ratelimit rules list
  caddy pg-ratelimit rules list --json`,
		empty: says("There are no rules."),
		list: func(c *call) ([]line, error) {
			rules, err := c.db.Rules(c.ctx)
			return lines(rules, err, ruleRow)
		},
		below: addProblems,
	}, {
		use:   "set NAME SETTING=VALUE ...",
		short: "Makes a rule, or changes settings of one",
		long: `Makes a rule, or changes the settings that are named and keeps the others. Values of lists
have commas between them. An empty value takes a setting back to its default, and deletes a
limit. The change is one transaction.

per_second, per_minute, per_hour, per_day, per_month and in_flight are how much may pass, or
unlimited. A month is that of the calendar, or of the user's billing period. limit.NAME is a limit
of any window, as in 100/10s or 10000/1mo calendar Europe/Berlin; or of requests in flight, as in
5/in_flight. algorithm, burst, durable and on_exceed are for all limits of the rule. valid is
FROM..UNTIL, where either may be missing.`,
		example: `  # 1,000 requests an hour for each user of the tier free, 20 at once
  caddy pg-ratelimit rules set free_tier_limit family=plan tiers=free algorithm=token_bucket per_hour=1000 burst=20 priority=700

  # at most 100 a second from everybody together on /api/v1
  caddy pg-ratelimit rules set protect paths='/api/v1/*' count_by=all per_second=100

  # on trial: count and report, refuse nothing
  caddy pg-ratelimit rules set stricter tiers=free per_minute=60 mode=shadow

  # a limit of any window, for some days of November
  caddy pg-ratelimit rules set friday limit.burst=50/10s valid=2026-11-27..2026-11-30

  # match all paths again
  caddy pg-ratelimit rules set protect paths=`,
		flags:  []flag{{name: "force", value: false, usage: "allow an amount of 0, which refuses every request"}},
		change: set(admin.SetRule),
	}, ruleMode("enable", "enforce", "on: its limits apply"), ruleMode("disable", "off", "off: it is ignored"), {
		use:   "rename NAME NEW",
		short: "Gives a rule another name",
		long: `Gives a rule another name. Its limits and overrides go with it. It begins new counters, and the history keeps the
old name for what was recorded.`,
		example: "  caddy pg-ratelimit rules rename free basic",
		change:  renamed,
	}, {
		use:     "delete NAME",
		short:   "Deletes a rule with its limits and overrides",
		example: "  caddy pg-ratelimit rules delete free",
		change:  deleted,
	}},
}

// ruleMode is the command that gives a rule a mode.
func ruleMode(name, mode, help string) entry {
	return entry{
		use:     name + " NAME",
		short:   "Turns a rule " + help,
		example: "  caddy pg-ratelimit rules " + name + " free",
		change:  func(c *call) (string, error) { return name + "d", c.db.SetRuleMode(c.ctx, c.args[0], mode) },
	}
}

// addProblems names the rules that cannot be used, or may not mean what they say.
func addProblems(_ *call, p *page, rules []line) {
	problems := ""
	for _, l := range rules {
		r := l.value.(*admin.Row)
		for _, problem := range r.Get("problems").([]string) {
			problems += fmt.Sprintf("%s cannot be used: %s\n", text(r.Text("name")), text(problem))
		}
		for _, warning := range r.Get("warnings").([]string) {
			problems += fmt.Sprintf("%s: %s\n", text(r.Text("name")), text(warning))
		}
	}
	if problems != "" {
		p.print("\n%s", problems)
	}
}

func ruleRow(r *admin.Row) row {
	countedBy := none
	if r.Text("action") == "limit" {
		countedBy = text(strings.Join(texts(r.Get("count_by")), " + "))
	}
	if r.Text("without_header") == "skip" {
		countedBy += " (or skip)"
	}
	return append(fields[admin.Row]("NAME name, ACTION action, FAMILY family, PRIORITY priority, MODE mode")(r),
		"WHEN", when(r), "COUNTED BY", countedBy, "LIMITS", limits(r.Get("limits").([]admin.Row)))
}

// when are the conditions of a rule.
func when(r *admin.Row) string {
	var all []string
	for _, name := range []string{"tiers", "hosts", "paths", "methods", "networks"} {
		if values := r.Get(name); values != nil {
			all = append(all, name+"="+strings.Join(texts(values), ","))
		}
	}
	if from, until := r.Get("valid_from"), r.Get("valid_until"); from != nil || until != nil {
		all = append(all, "valid="+strings.ReplaceAll(or(from, "")+".."+or(until, ""), " ", "T"))
	}
	if len(all) == 0 {
		return "always"
	}
	return text(strings.Join(all, " "))
}

// limits are the limits of a rule, as in "per_hour 1000/1h token_bucket burst 20".
func limits(limits []admin.Row) string {
	var all []string
	for i := range limits {
		l := &limits[i]
		amount := or(l.Get("events"), "unlimited")
		if l.Text("algorithm") != "in_flight" {
			amount += "/" + window(l.Get("seconds"), l.Get("calendar"))
		}
		one := []string{l.Text("name"), amount, l.Text("algorithm")}
		if zone := l.Text("time_zone"); zone != "" {
			one = append(one, zone)
		}
		if burst := l.Get("burst"); burst != nil {
			one = append(one, "burst", cell(burst))
		}
		if l.Get("durable") == true {
			one = append(one, "durable")
		}
		if exceeded := l.Text("on_exceed"); exceeded != "refuse" {
			one = append(one, exceeded)
		}
		all = append(all, strings.Join(one, " "))
	}
	return text(strings.Join(all, "; "))
}

// window is the window of a limit: so many seconds, or a unit of the calendar.
func window(seconds, calendar any) string {
	if given(seconds) != nil {
		return span(given(seconds).(float64))
	}
	return cell(calendar)
}
