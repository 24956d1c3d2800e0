package caddymodule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("pg_ratelimit", parseHandler)
	httpcaddyfile.RegisterDirectiveOrder("pg_ratelimit", httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterGlobalOption("pg_ratelimit", parseApp)
}

// parseHandler sets up a handler from its directive.
func parseHandler(helper httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h := new(Handler)
	if err := h.UnmarshalCaddyfile(helper.Dispenser); err != nil {
		return nil, err
	}
	return h, nil
}

// UnmarshalCaddyfile reads the handler's directive. Syntax:
//
//	pg_ratelimit [<matcher>] [<prefix>] {
//		dsn                <postgres URL or key=value | memory>
//		prefix             <name>
//		key                <text with placeholders>
//		algorithm          sliding_window | fixed_window | token_bucket | sliding_log | gcra
//		limit              <events> <window> [calendar [<time zone>]]
//		burst              <capacity>
//		cost               <whole number or placeholder>
//		durable            [on|off]
//		synchronous_commit [on|off]
//		hash_key           [on|off]
//		ipv4_prefix        <bits>
//		ipv6_prefix        <bits>
//		timeout            <duration>
//		on_error           allow | deny
//		zone <prefix> {
//			match { <matchers> }
//			key … algorithm … limit … burst … cost … durable … synchronous_commit …
//			hash_key … ipv4_prefix … ipv6_prefix …
//		}
//	}
//
// zone may be repeated, and match within a zone: then any of the blocks has to
// match. Everything else is given at most once.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	b := newBlock(d)
	args := d.RemainingArgs()
	if len(args) > 1 {
		return b.wrong("prefix", strings.Join(args, " "), "one name")
	}
	if len(args) == 1 {
		h.Prefix = args[0]
	}
	var zones []caddyfile.Token
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		var err error
		if d.Val() == "zone" {
			zones = append(zones, d.Token())
			err = h.readZone(d)
		} else {
			err = h.read(b)
		}
		if err != nil {
			return err
		}
	}
	err := h.compile()
	var inZone *zoneError
	if errors.As(err, &inZone) {
		return errorAt(zones[inZone.at], err)
	}
	return b.locate(err)
}

// read reads a subdirective of the handler, other than zone.
func (h *Handler) read(b *block) error {
	args, err := b.next()
	if err != nil {
		return err
	}
	switch b.name {
	case "dsn":
		h.DSN, err = b.dsn(args)
	case "prefix":
		var prefix string
		if prefix, err = b.one(args, "one name"); err == nil && h.Prefix != "" && h.Prefix != prefix {
			err = b.wrong("prefix", prefix, "left out, or the same as the argument "+strconv.Quote(h.Prefix))
		}
		h.Prefix = prefix
	case "timeout":
		var text string
		if text, err = b.one(args, "one duration, such as 250ms"); err == nil {
			timeout, failure := edge.ParseTimeout(text)
			h.Timeout, err = caddy.Duration(timeout), b.locate(failure)
		}
	case "on_error":
		h.OnError, err = b.one(args, "allow or deny")
	default:
		var known bool
		if known, err = h.Rule.read(b, args); !known {
			err = b.unknown(append(ruleNames(), "dsn", "prefix", "timeout", "on_error", "zone")...)
		}
	}
	return err
}

// readZone reads a zone.
func (h *Handler) readZone(d *caddyfile.Dispenser) error {
	b := newBlock(d)
	args := d.RemainingArgs()
	if len(args) != 1 {
		return b.wrong("zone", strings.Join(args, " "), "one name, the zone's prefix, and a block")
	}
	z := &Zone{Rule: Rule{Prefix: args[0]}}
	b.title = z.name(len(h.Zones)) + ": "
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		err := error(nil)
		if d.Val() == "match" {
			err = z.readMatch(b)
		} else if args, err = b.next(); err == nil {
			var known bool
			if known, err = z.read(b, args); !known {
				err = b.unknown(append(ruleNames(), "match")...)
			}
		}
		if err != nil {
			return err
		}
	}
	h.Zones = append(h.Zones, z)
	_, err := z.compile()
	return b.locate(err)
}

// readMatch reads a zone's block of matchers.
func (z *Zone) readMatch(b *block) error {
	token := b.d.Token()
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(b.d)
	if err != nil {
		return fmt.Errorf("%smatch: %w", b.title, err) // with its place
	}
	if len(set) == 0 {
		return errorAt(token, fmt.Errorf("%smatch: missing: must be a block of request matchers", b.title))
	}
	z.MatcherSetsRaw = append(z.MatcherSetsRaw, set)
	return nil
}

// ruleNames are the subdirectives that a handler and a zone have in common.
func ruleNames() []string {
	return []string{
		"key", "algorithm", "limit", "burst", "cost", "durable", "synchronous_commit",
		"hash_key", "ipv4_prefix", "ipv6_prefix",
	}
}

// read reads one of them. What the values may be compile checks, unless there
// is no place in a Rule for a wrong one.
func (r *Rule) read(b *block, args []string) (known bool, err error) {
	switch b.name {
	case "key":
		r.Key, err = b.one(args, "one text, with or without placeholders")
	case "algorithm":
		r.Algorithm, err = b.one(args, "the name of one algorithm")
	case "limit":
		r.Limit = strings.Join(args, " ")
	case "burst":
		var text string
		if text, err = b.one(args, "one whole number"); err == nil {
			r.Burst, err = edge.ParseBurst(text)
			err = b.locate(err)
		}
	case "cost":
		r.Cost, err = b.one(args, "one whole number, or a placeholder that gives one")
	case "durable":
		r.Durable, err = b.flag(args)
	case "synchronous_commit":
		r.SynchronousCommit, err = b.flag(args)
	case "hash_key":
		var hash bool
		hash, err = b.flag(args)
		r.HashKey = &hash
	case "ipv4_prefix":
		r.IPv4Prefix, err = b.number(args, 32, wantIPv4Bits)
	case "ipv6_prefix":
		r.IPv6Prefix, err = b.number(args, 128, wantIPv6Bits)
	default:
		return false, nil
	}
	return true, err
}

// parseApp sets up the app from the global option. Syntax:
//
//	pg_ratelimit {
//		dsn                 <postgres URL or key=value | memory>
//		max_conns           <number>
//		auto_migrate        [on|off]
//		cleanup_probability <number>
//		in_memory_block     [on|off]
//		max_blocked_keys    <number>
//	}
func parseApp(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // the option's name
	if existing != nil {
		return nil, d.Err("pg_ratelimit: given twice: must be one global option")
	}
	b := newBlock(d)
	if args := d.RemainingArgs(); len(args) > 0 {
		return nil, b.wrong("pg_ratelimit", strings.Join(args, " "), "a block: a global option has no prefix")
	}
	a := new(App)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := a.read(b); err != nil {
			return nil, err
		}
	}
	if err := a.check(); err != nil {
		return nil, b.locate(err)
	}
	return httpcaddyfile.App{Name: "pg_ratelimit", Value: caddyconfig.JSON(a, nil)}, nil
}

// read reads a subdirective of the global option.
func (a *App) read(b *block) error {
	args, err := b.next()
	if err != nil {
		return err
	}
	switch b.name {
	case "dsn":
		a.DSN, err = b.dsn(args)
	case "max_conns":
		a.MaxConns, err = b.number(args, maxMaxConns, wantMaxConns)
	case "auto_migrate":
		var on bool
		on, err = b.flag(args)
		a.AutoMigrate = &on
	case "cleanup_probability":
		var text string
		if text, err = b.one(args, wantCleanup); err == nil {
			probability, failure := strconv.ParseFloat(text, 64)
			if a.CleanupProbability = &probability; failure != nil {
				err = b.wrong(b.name, text, wantCleanup)
			}
		}
	case "in_memory_block":
		var on bool
		on, err = b.flag(args)
		a.InMemoryBlock = &on
	case "max_blocked_keys":
		a.MaxBlockedKeys, err = b.number(args, maxBlockedKeys, wantBlockedKeys)
	default:
		err = b.unknown("dsn", "max_conns", "auto_migrate", "cleanup_probability", "in_memory_block", "max_blocked_keys")
	}
	return err
}

// Interface guards
var _ caddyfile.Unmarshaler = (*Handler)(nil)
