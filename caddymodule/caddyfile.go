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

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
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
//		min_cost           <whole number>
//		durable            [on|off]
//		synchronous_commit [on|off]
//		lease              <percentage>
//		hash_key           [on|off]
//		ipv4_prefix        <bits>
//		ipv6_prefix        <bits>
//		ban                <duration> after <n> refusals in <duration>
//		audit              off | denied | all | sample <percentage>
//		timeout            <duration>
//		on_error           allow | deny
//		headers            ours | tighter | both
//		zone <prefix> {
//			match { <matchers> }
//			key … algorithm … limit … burst … cost … min_cost … durable … synchronous_commit …
//			lease … hash_key … ipv4_prefix … ipv6_prefix … ban … audit …
//		}
//		policy {
//			api_key        <text with placeholders>
//			user           <text with placeholders>
//			tier           <name or placeholder>
//			unknown_key    reject | anonymous
//			route          <name or placeholder>
//			refresh        <duration>
//			max_identities <number>
//		}
//	}
//
// zone can be repeated. match can be repeated within a zone: one of the blocks has to match.
// Every other subdirective is given at most once.
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
	case "headers":
		h.Headers, err = b.one(args, "ours, tighter or both")
	case "policy":
		h.Policy, err = readPolicy(b, args)
	default:
		var known bool
		if known, err = h.Rule.read(b, args); !known {
			err = b.unknown(append(ruleNames(), "dsn", "prefix", "timeout", "on_error", "headers", "policy", "zone")...)
		}
	}
	return err
}

// readPolicy reads the subdirective policy, with or without a block.
func readPolicy(outer *block, args []string) (*Policy, error) {
	if len(args) > 0 {
		return nil, outer.wrong("policy", strings.Join(args, " "), "a block, or nothing")
	}
	p := new(Policy)
	b := newBlock(outer.d)
	b.title = "policy: "
	for nesting := b.d.Nesting(); b.d.NextBlock(nesting); {
		if err := p.read(b); err != nil {
			return nil, err
		}
	}
	_, err := p.compile()
	return p, b.locate(err)
}

// read reads a subdirective of a policy.
func (p *Policy) read(b *block) error {
	args, err := b.next()
	if err != nil {
		return err
	}
	switch b.name {
	case "api_key":
		p.APIKey, err = b.one(args, "one text with a placeholder")
	case "user":
		p.User, err = b.one(args, "one text with a placeholder")
	case "tier":
		p.Tier, err = b.one(args, "one name, or a placeholder that gives one")
	case "unknown_key":
		p.UnknownKey, err = b.one(args, "reject or anonymous")
	case "route":
		p.Route, err = b.one(args, "one name, or a placeholder that gives one")
	case "refresh":
		var text string
		if text, err = b.one(args, "one duration, such as 500ms"); err == nil {
			refresh, failure := edge.ParseRefresh(text)
			p.Refresh, err = caddy.Duration(refresh), b.locate(failure)
		}
	case "max_identities":
		p.MaxIdentities, err = b.number(args, edge.MaxIdentities)
	default:
		err = b.unknown("api_key", "user", "tier", "unknown_key", "route", "refresh", "max_identities")
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
	if b.d.NextArg() {
		if named := b.d.Val(); strings.HasPrefix(named, "@") {
			return errorAt(token, fmt.Errorf("%smatch: %q: must be a block of request matchers, { … }, or one matcher, as in path /api/*: "+
				"the matcher of a zone has no name", b.title, named))
		}
		b.d.Prev()
	}
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(b.d)
	if err != nil {
		return fmt.Errorf("%smatch: %w", b.title, err) // it has the line already
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
		"key", "algorithm", "limit", "burst", "cost", "min_cost", "durable", "synchronous_commit",
		"lease", "hash_key", "ipv4_prefix", "ipv6_prefix", "ban", "audit",
	}
}

// read reads a subdirective of ruleNames. It checks only the values that a Rule cannot hold if
// they are wrong. compile checks all others.
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
			var burst int64
			burst, err = edge.ParseBurst(text)
			r.Burst, err = &burst, b.locate(err)
		}
	case "cost":
		r.Cost, err = b.one(args, "one whole number, or a placeholder that gives one")
	case "min_cost":
		var text string
		if text, err = b.one(args, "one whole number"); err == nil {
			var cost int64
			cost, err = edge.ParseMinCost(text, 0)
			r.MinCost, err = &cost, b.locate(err)
		}
	case "durable":
		r.Durable, err = b.flag(args)
	case "synchronous_commit":
		r.SynchronousCommit, err = b.flag(args)
	case "lease":
		r.Lease, err = b.one(args, edge.WantLease)
	case "hash_key":
		var hash bool
		hash, err = b.flag(args)
		r.HashKey = &hash
	case "ipv4_prefix":
		var bits int
		bits, err = b.number(args, edge.IPv4Prefix)
		r.IPv4Prefix = &bits
	case "ipv6_prefix":
		var bits int
		bits, err = b.number(args, edge.IPv6Prefix)
		r.IPv6Prefix = &bits
	case "ban":
		r.Ban = strings.Join(args, " ")
		if r.Ban == "" {
			err = b.wrong("ban", "", "a ban such as 1h after 10 refusals in 1m")
		}
	case "audit":
		r.Audit = strings.Join(args, " ")
		if r.Audit == "" {
			err = b.wrong("audit", "", "off, denied, all, or sample and a percentage")
		}
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
//		max_leases          <number>
//		node_name           <name or placeholder>
//		history {
//			node          <name>
//			region        <name>
//			audit_address full | prefix | off
//			retention {
//				audit          <duration>
//				metrics_minute <duration>
//				metrics_hour   <duration>
//				metrics_day    <duration>
//				usage          <duration>
//			}
//		}
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
	if _, err := a.settings(); err != nil {
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
		var n int
		n, err = b.number(args, edge.MaxConns)
		a.MaxConns = &n
	case "auto_migrate":
		var on bool
		on, err = b.flag(args)
		a.AutoMigrate = &on
	case "cleanup_probability":
		var text string
		if text, err = b.one(args, edge.WantCleanupProbability); err == nil {
			probability, failure := edge.ParseProbability(text)
			a.CleanupProbability, err = &probability, b.locate(failure)
		}
	case "in_memory_block":
		var on bool
		on, err = b.flag(args)
		a.InMemoryBlock = &on
	case "max_blocked_keys":
		var n int
		n, err = b.number(args, edge.MaxBlockedKeys)
		a.MaxBlockedKeys = &n
	case "max_leases":
		var n int
		n, err = b.number(args, edge.MaxLeases)
		a.MaxLeases = &n
	case "node_name":
		a.NodeName, err = b.one(args, "one name, or a placeholder that gives one")
	case "history":
		a.History, err = readHistory(b, args)
	default:
		err = b.unknown("dsn", "max_conns", "auto_migrate", "cleanup_probability", "in_memory_block", "max_blocked_keys", "max_leases", "node_name", "history")
	}
	return err
}

// Interface guards
var _ caddyfile.Unmarshaler = (*Handler)(nil)
