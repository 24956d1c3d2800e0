package caddymodule

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("pg_ratelimit", parseHandler)
	httpcaddyfile.RegisterDirectiveOrder("pg_ratelimit", httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterGlobalOption("pg_ratelimit", parseApp)
}

func parseHandler(helper httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h := new(Handler)
	helper.Next()
	start := helper.Token()
	helper.Reset()
	if err := h.UnmarshalCaddyfile(helper.Dispenser); err != nil {
		return nil, err
	}
	// App.open compares the limits again, by the databases, but without the lines.
	conflicts, ok := helper.State["pg_ratelimit"].(*serve.Conflicts)
	if !ok {
		conflicts = new(serve.Conflicts)
		helper.State["pg_ratelimit"] = conflicts
	}
	place := fmt.Sprintf("%s:%d", start.File, start.Line)
	if err := conflicts.Add(string(h.DSN), place, h.site.Zones); err != nil {
		return nil, errorAt(start, err)
	}
	return h, nil
}

var (
	handlerTable = slices.Concat(settings.LimitTable, settings.HandlerTable)
	zoneTable    = slices.Concat(settings.LimitTable[1:], settings.ZoneTable) // the prefix is the argument
)

// UnmarshalCaddyfile reads the handler's directive. Its syntax is in docs/caddy.md. zone can be repeated, and
// match can be repeated within a zone: a request must match one of the match blocks. Any other subdirective
// can occur only once.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	b := newBlock(d)
	args := d.RemainingArgs()
	if len(args) > 1 {
		return b.invalid("prefix", strings.Join(args, " "), "one name")
	}
	if len(args) == 1 {
		h.Prefix = Text(args[0])
	}
	argument := h.Prefix
	var zones []*block
	var err error
	for nesting := d.Nesting(); err == nil && d.NextBlock(nesting); {
		if d.Val() == "zone" {
			zones = append(zones, newBlock(d))
			err = h.readZone(zones[len(zones)-1])
		} else {
			err = b.read(h, handlerTable, "zone")
		}
	}
	if err != nil {
		return err
	}
	if argument != "" && h.Prefix != argument {
		return b.invalid("prefix", string(h.Prefix), "left out, or the same as the argument "+
			strconv.Quote(string(argument)))
	}
	err = h.compile()
	var part *serve.PartError
	switch {
	case !errors.As(err, &part):
		return b.locate(err)
	case part.Part >= 0:
		return zones[part.Part].locate(part.Err)
	}
	return b.blocks["policy"].locate(part.Err)
}

func (h *Handler) readZone(b *block) error {
	d := b.d
	args := d.RemainingArgs()
	if len(args) != 1 {
		return b.invalid("zone", strings.Join(args, " "), "one name, the zone's prefix, and a block")
	}
	z := &Zone{LimitSettings: LimitSettings{Prefix: Text(args[0])}}
	b.title = serve.ZoneName(len(h.Zones), args[0]) + ": "
	h.Zones = append(h.Zones, z)
	var err error
	for nesting := d.Nesting(); err == nil && d.NextBlock(nesting); {
		if d.Val() == "match" {
			err = z.readMatch(b)
		} else {
			err = b.read(z, zoneTable, "match")
		}
	}
	return err
}

// readMatch adds a matcher set to a zone. It accepts a block or one matcher, but no named matcher.
func (z *Zone) readMatch(b *block) error {
	token := b.d.Token()
	if b.d.NextArg() {
		if named := b.d.Val(); strings.HasPrefix(named, "@") {
			return errorAt(token, fmt.Errorf("%smatch: %q: must be a block of request matchers, { … }, or "+
				"one matcher, as in path /api/*: the matcher of a zone has no name", b.title, named))
		}
		b.d.Prev()
	}
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(b.d)
	if err != nil {
		return fmt.Errorf("%smatch: %w", b.title, err) // err includes the line
	}
	if len(set) == 0 {
		return errorAt(token, fmt.Errorf("%smatch: missing: must be a block of request matchers", b.title))
	}
	z.MatcherSetsRaw = append(z.MatcherSetsRaw, set)
	return nil
}

// parseApp parses the global option. Its syntax is in docs/caddy.md.
func parseApp(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // the option's name
	if existing != nil {
		return nil, d.Err("pg_ratelimit: given twice: must be one global option")
	}
	b := newBlock(d)
	if args := d.RemainingArgs(); len(args) > 0 {
		return nil, b.invalid("pg_ratelimit", strings.Join(args, " "),
			"a block: a global option has no prefix")
	}
	a := new(App)
	if err := b.readAll(a, settings.ConnectionTable); err != nil {
		return nil, err
	}
	if _, err := a.storeSettings(); err != nil {
		return nil, b.locate(err)
	}
	return httpcaddyfile.App{Name: "pg_ratelimit", Value: caddyconfig.JSON(a, nil)}, nil
}
