package command

import (
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

var rulesCommand = entry{
	use:   "rules",
	short: "Lists and changes rules",
	example: `  caddy pg-ratelimit rules list
  caddy pg-ratelimit rules set free family=plan tiers=free per_hour=1000`,
	commands: []entry{{
		use:   "list",
		short: "Lists all rules in the order in which proxies try them",
		long: `Lists all rules in the order in which proxies try them, with their limits. Rules that
cannot be used are named below the list, with what they should be, and rules for tiers that
are not in rate_limit_tiers.`,
		example: `  caddy pg-ratelimit rules list
  caddy pg-ratelimit rules list --json`,
		do: func(c *call) error {
			rules, err := c.db.Rules(c.ctx)
			return show(c, rules, err, addRules)
		},
	}, {
		use:   "set NAME SETTING=VALUE ...",
		short: "Makes a rule, or changes settings of one",
		long: `Makes a rule, or changes the settings that are named and keeps the others. Values of lists
have commas between them. An empty value takes a setting back to its default, and deletes a
limit. The change is one transaction.`,
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
		first: ruleNames, settings: admin.RuleSettings(),
		flags: []flag{{name: "force", value: false, usage: "allow an amount of 0, which refuses every request"}},
		do: func(c *call) error {
			isNew, err := c.db.SetRule(c.ctx, c.args[0], c.args[1:], c.is("force"))
			return c.changed(err, "rule", c.args[0], createdOrChanged(isNew))
		},
	}, ruleMode("enable", "enforce", "on: its limits apply"), ruleMode("disable", "off", "off: it is ignored"), {
		use:   "rename NAME NEW",
		short: "Gives a rule another name",
		long: `Gives a rule another name. Its limits and overrides go with it, and it keeps its counters and its
history. Proxies of a version without this command begin new counters for it.`,
		example: "  caddy pg-ratelimit rules rename free basic",
		first:   ruleNames,
		do: func(c *call) error {
			return c.changed(c.db.RenameRule(c.ctx, c.args[0], c.args[1]), "rule", c.args[0], "renamed to "+text(c.args[1]))
		},
	}, {
		use:     "delete NAME",
		short:   "Deletes a rule with its limits and overrides",
		example: "  caddy pg-ratelimit rules delete free",
		first:   ruleNames,
		do: func(c *call) error {
			return c.changed(c.db.DeleteRule(c.ctx, c.args[0]), "rule", c.args[0], "deleted")
		},
	}},
}

// ruleMode is the command that gives a rule a mode.
func ruleMode(name, mode, help string) entry {
	return entry{
		use:     name + " NAME",
		short:   "Turns a rule " + help,
		example: "  caddy pg-ratelimit rules " + name + " free",
		first:   ruleNames,
		do: func(c *call) error {
			return c.changed(c.db.SetRuleMode(c.ctx, c.args[0], mode), "rule", c.args[0], name+"d")
		},
	}
}

func addRules(p *page, rules []admin.Rule) {
	addList(p, rules, ruleRow, "There are no rules.")
	problems := ""
	for i := range rules {
		r := &rules[i]
		for _, problem := range r.Problems {
			problems += fmt.Sprintf("%s cannot be used: %s\n", text(r.Name), text(problem))
		}
		for _, warning := range r.Warnings {
			problems += fmt.Sprintf("%s: %s\n", text(r.Name), text(warning))
		}
	}
	if problems != "" {
		p.print("\n%s", problems)
	}
}

func ruleRow(r *admin.Rule) row {
	countedBy := none
	if r.Action == "limit" {
		countedBy = text(strings.Join(r.CountBy, " + "))
	}
	if r.WithoutHeader == "skip" {
		countedBy += " (or skip)"
	}
	return row{
		"NAME", r.Name, "ACTION", r.Action, "FAMILY", r.Family, "PRIORITY", r.Priority, "MODE", r.Mode, "WHEN", when(r),
		"COUNTED BY", countedBy, "LIMITS", limits(r), "BAN", bans(r),
	}
}

// when are the conditions of a rule.
func when(r *admin.Rule) string {
	var all []string
	for _, c := range []struct {
		name   string
		values []string
	}{{"tiers", r.Tiers}, {"hosts", r.Hosts}, {"paths", r.Paths}, {"methods", r.Methods}, {"networks", r.Networks}} {
		if c.values != nil {
			all = append(all, c.name+"="+strings.Join(c.values, ","))
		}
	}
	if r.ValidFrom != nil || r.ValidUntil != nil {
		all = append(all, "valid="+strings.ReplaceAll(or(r.ValidFrom, "")+".."+or(r.ValidUntil, ""), " ", "T"))
	}
	if len(all) == 0 {
		return "always"
	}
	return text(strings.Join(all, " "))
}

// limits are the limits of a rule, as in "per_hour 1000/1h, token_bucket, burst 20".
func limits(r *admin.Rule) string {
	var all []string
	for _, l := range r.Limits {
		one := fmt.Sprintf("%s %s/%s %s", l.Name, or(l.Events, "unlimited"), window(l.Seconds, l.Calendar), l.Algorithm)
		if l.Seconds == nil && l.Calendar == nil {
			one = fmt.Sprintf("%s %s %s", l.Name, or(l.Events, "unlimited"), l.Algorithm)
		}
		if l.TimeZone != nil {
			one += " " + *l.TimeZone
		}
		if l.Burst != nil {
			one += " burst " + cell(*l.Burst)
		}
		if l.Durable {
			one += " durable"
		}
		if l.OnExceed != "refuse" {
			one += " " + l.OnExceed
		}
		all = append(all, one)
	}
	return text(strings.Join(all, "; "))
}

// bans says when proxies ban: "1h after 5 in 10m".
func bans(r *admin.Rule) string {
	if r.BanFor == nil || r.BanAfter == nil || r.BanWithin == nil {
		return none
	}
	return span(*r.BanFor) + " after " + cell(*r.BanAfter) + " in " + span(*r.BanWithin)
}
