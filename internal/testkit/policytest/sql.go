package policytest

import (
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// SQL returns statements that make the tiers, the rules, the overrides for tiers and the bans of a
// world. Each is a whole. A database may refuse some of them, since a world is made at random.
func (w *World) SQL() []string {
	var all []string
	named := map[string]bool{}
	for _, list := range append([][]string{tiers}, tiersOf(w)...) {
		for _, tier := range list {
			if !named[tier] {
				named[tier] = true
				all = append(all,
					"INSERT INTO rate_limit_tiers (tier) VALUES ("+quote(tier)+") ON CONFLICT DO NOTHING")
			}
		}
	}
	for i := range w.Rules {
		r := &w.Rules[i]
		var networks []string
		for _, n := range r.Networks {
			networks = append(networks, n.Masked().String())
		}
		status := "NULL"
		if r.Status != 0 {
			status = fmt.Sprint(r.Status)
		}
		text := fmt.Sprintf(`INSERT INTO rate_limit_rules (name, family, priority, mode, action, hosts, paths,
			methods, networks, tiers, count_by, status)
			VALUES (%s, nullif(%s, ''), %d, '%s', '%s', %s, %s, %s, %s::cidr[], %s, coalesce(%s, '{user}'),
			%s);`, quote(r.Name), quote(r.Family), r.Priority, r.Mode, r.Action,
			array(r.Hosts), array(r.Paths), array(r.Methods), array(networks), array(r.Tiers),
			array(r.CountBy), status)
		for j := range r.Limits {
			l := &r.Limits[j]
			events := fmt.Sprint(l.Limit.Events)
			if l.Unlimited {
				events = "NULL"
			}
			per, calendar := "'1 minute'", "NULL"
			if l.Limit.Calendar == ratelimit.Month {
				per, calendar = "NULL", "'month'"
			}
			exceed := "refuse"
			if l.Overage {
				exceed = "overage"
			}
			text += fmt.Sprintf("INSERT INTO rate_limit_rule_limits (rule, name, algorithm, events, per, "+
				"calendar, burst, on_exceed) VALUES (%s, %s, '%s', %s, %s, %s, nullif(%d, 0), '%s');",
				quote(r.Name), quote(l.Name), l.Limit.Algorithm, events, per, calendar, l.Limit.Burst, exceed)
		}
		all = append(all, text)
	}
	for i := range w.Overrides {
		o := &w.Overrides[i]
		events := fmt.Sprint(o.Events)
		if o.Unlimited {
			events = "NULL"
		}
		all = append(all,
			fmt.Sprintf("INSERT INTO rate_limit_overrides (rule, limit_name, tier, events) VALUES (%s, %s, "+
				"%s, %s)", quote(o.Rule), quote(o.Limit), quote(o.Tier), events))
	}
	for i := range w.Bans {
		switch b := &w.Bans[i]; {
		case b.Network.IsValid():
			all = append(all,
				"INSERT INTO rate_limit_bans (network) VALUES ("+quote(b.Network.Masked().String())+")")
		case b.User != "":
			all = append(all, "INSERT INTO rate_limit_bans (user_id) VALUES ("+quote(b.User)+")")
		}
	}
	return all
}

func tiersOf(w *World) [][]string {
	var all [][]string
	for i := range w.Rules {
		all = append(all, w.Rules[i].Tiers)
	}
	return all
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// array is an array of distinct texts; NULL without any.
func array(texts []string) string {
	var parts []string
	seen := map[string]bool{}
	for _, text := range texts {
		if !seen[text] {
			seen[text] = true
			parts = append(parts, quote(text))
		}
	}
	if parts == nil {
		return "NULL"
	}
	return "ARRAY[" + strings.Join(parts, ", ") + "]"
}
