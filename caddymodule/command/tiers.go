package command

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func tiersCommand(t *tool) *cobra.Command {
	return group(&cobra.Command{
		Use:   "tiers",
		Short: "Lists and changes tiers: the plans that users are on",
		Example: `  caddy pg-ratelimit tiers list
  caddy pg-ratelimit tiers set pro rank=2`,
	}, tiersList(t), tiersSet(t), tiersRename(t), tiersDelete(t))
}

func tiersList(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "Lists the tiers, with how many users and keys are on each, and the rules for it",
		Example: "  caddy pg-ratelimit tiers list",
		RunE: t.on(func(c *call) error {
			tiers, err := c.db.Tiers(c.ctx)
			return showList(c, tiers, err, func(tier *admin.Tier) row {
				return row{"TIER", tier.Tier, "RANK", tier.Rank, "USERS", tier.Users, "KEYS", tier.Keys, "RULES", strings.Join(tier.Rules, ", "), "COMMENT", tier.Comment}
			}, "There are no tiers.")
		}),
	}
}

func tiersSet(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "set TIER [SETTING=VALUE ...]",
		Short: "Makes a tier, or changes settings of one",
		Long: `Makes a tier, or changes the settings that are named and keeps the others. An empty value takes a
setting back to its default.

Settings:
` + settingsHelp(admin.TierSettings()),
		Example: `  caddy pg-ratelimit tiers set pro
  caddy pg-ratelimit tiers set pro rank=2 comment='49 dollars a month'`,
		ValidArgsFunction: t.completeSettings(tierNames, admin.TierSettings(), ""),
		RunE: t.on(func(c *call) error {
			isNew, err := c.db.SetTier(c.ctx, c.args[0], c.args[1:])
			return c.changed(err, "tier", c.args[0], createdOrChanged(isNew))
		}),
	}
}

func tiersRename(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "rename TIER NEW",
		Short: "Gives a tier another name",
		Long: `Gives a tier another name. Its users, keys, overrides and rules go with it, in one transaction.
The setting "tier" in the configuration of a proxy keeps the old name.`,
		Example:           "  caddy pg-ratelimit tiers rename pro business",
		ValidArgsFunction: t.completeOne(tierNames),
		RunE: t.on(func(c *call) error {
			return c.changed(c.db.RenameTier(c.ctx, c.args[0], c.args[1]), "tier", c.args[0], "renamed to "+text(c.args[1]))
		}),
	}
}

func tiersDelete(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:               "delete TIER",
		Short:             "Deletes a tier that nothing uses",
		Example:           "  caddy pg-ratelimit tiers delete pro",
		ValidArgsFunction: t.completeOne(tierNames),
		RunE: t.on(func(c *call) error {
			return c.changed(c.db.DeleteTier(c.ctx, c.args[0]), "tier", c.args[0], "deleted")
		}),
	}
}
