package command

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

const (
	// completionTimeout bounds how long a shell waits for suggestions.
	completionTimeout = 2 * time.Second
	// mostSuggestions bounds how many there are.
	mostSuggestions = 100
)

// suggest suggests arguments.
type suggest = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// names reads names from a database, at least those that begin with begun.
type names func(c *call, begun string) ([]string, error)

// ask asks the database for suggestions. There are none if the database does not answer.
func (t *tool) ask(begun string, read names) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	var all []string
	err := (&call{tool: t, ctx: ctx}).run(ofPolicy, func(c *call) (err error) {
		all, err = read(c, begun)
		return err
	})
	if err != nil {
		all = nil
	}
	return beginning(all, begun), cobra.ShellCompDirectiveNoFileComp
}

// beginning returns the names that begin with begun, at most mostSuggestions. A name may have a
// tab and a description.
func beginning(all []string, begun string) []string {
	var found []string
	for _, name := range all {
		if strings.HasPrefix(name, begun) && len(found) < mostSuggestions {
			found = append(found, name)
		}
	}
	return found
}

// completeArguments suggests the first argument of an entry, and settings for the others.
func (t *tool) completeArguments(e *entry) suggest {
	return func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0 && e.first != nil:
			return t.ask(begun, e.first)
		case e.settings != nil:
			return t.completeSetting(e.settings, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// prefixes are those of the limits of rules.
func prefixes(c *call, _ string) ([]string, error) {
	rules, err := c.db.Rules(c.ctx)
	var all []string
	for i := range rules {
		for _, l := range rules[i].Limits {
			all = append(all, "rule/"+rules[i].Name+"/"+l.Name)
		}
	}
	return all, err
}

// completeSetting suggests name=, and after it values.
func (t *tool) completeSetting(settings []admin.Setting, begun string) ([]string, cobra.ShellCompDirective) {
	name, value, found := strings.Cut(begun, "=")
	if !found {
		var all []string
		for _, s := range settings {
			if strings.ToLower(s.Name) == s.Name { // not a placeholder such as limit.NAME
				all = append(all, s.Name+"=\t"+s.Help)
			}
		}
		return beginning(all, begun), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	var values []string
	for _, s := range settings {
		if s.Name == name {
			values = s.Values
		}
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if name == "tier" || name == "tiers" {
		values, directive = t.ask("", tierNames)
	}
	var all []string
	for _, v := range beginning(values, value) {
		all = append(all, name+"="+v)
	}
	return all, directive
}

func ruleNames(c *call, _ string) ([]string, error) { return c.db.RuleNames(c.ctx) }

func tierNames(c *call, _ string) ([]string, error) { return c.db.TierNames(c.ctx) }

func userNames(c *call, begun string) ([]string, error) {
	return c.db.UserNames(c.ctx, begun, mostSuggestions)
}

// validKeys are the ids of keys, with what they are for.
func validKeys(c *call, _ string) ([]string, error) {
	keys, err := c.db.Keys(c.ctx, "", 100*mostSuggestions)
	var all []string
	for _, k := range keys {
		if k.State == "valid" || k.State == "banned" {
			all = append(all, cell(k.ID)+"\t"+text(k.User)+" "+cell(k.Hint)+" "+cell(k.Name))
		}
	}
	return all, err
}

// banned are the networks, the users or the keys that are banned.
func banned(kind string) names {
	return func(c *call, _ string) ([]string, error) {
		bans, err := c.db.Bans(c.ctx)
		var all []string
		for _, b := range bans {
			if b.Kind == kind {
				all = append(all, b.Banned)
			}
		}
		return all, err
	}
}
