package command

import (
	"cmp"
	"regexp"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// setting is a setting of a configuration, as people and programs see it.
type setting struct {
	In      string `json:"in"`
	Name    string `json:"name"`
	Values  string `json:"values"`
	Default string `json:"default"`
	Help    string `json:"help"`
}

// marks are the marks and the links of Markdown in a help text.
var marks = regexp.MustCompile("`|\\[([^]]*)\\]\\([^)]*\\)")

// settingsIn adds the settings of a table of package edge, and those of its blocks.
func settingsIn(in string, table []edge.Setting, all []setting) []setting {
	for _, s := range table {
		values := cmp.Or(s.Syntax, s.WantArgs())
		if s.Form == edge.Switch {
			values = "on | off"
		}
		all = append(all, setting{in, s.Name, values, marks.ReplaceAllString(s.Default, "$1"), marks.ReplaceAllString(s.Help, "$1")})
		all = settingsIn(s.Name, s.Settings, all)
	}
	return all
}

var settingsCommand = entry{
	use:   "settings",
	short: "Lists the settings of a configuration, with their values and defaults",
	long: `Lists the settings that a configuration of a proxy may have: those of the directive, of a zone in it,
of the global option, and of the page. Names are those of a Caddyfile and of JSON; Traefik has them in camel case. The
command needs no database.`,
	example: "  caddy pg-ratelimit settings\n  caddy pg-ratelimit settings --json",
	of:      ofNone,
	do: func(c *call) error {
		all := settingsIn("directive, zone", edge.LimitTable, nil)
		all = settingsIn("directive", edge.HandlerTable, all)
		all = settingsIn("global option", edge.StoreTable, all)
		all = settingsIn("page", edge.PageTable, all)
		return showList(c, all, nil, func(s *setting) row {
			return row{"IN", s.In, "SETTING", s.Name, "VALUES", s.Values, "DEFAULT", s.Default, "MEANING", s.Help}
		}, "")
	},
}
