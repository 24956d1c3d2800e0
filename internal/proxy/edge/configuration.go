package edge

import (
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Configuration is that of a handler as a proxy has it, in text.
type Configuration struct {
	Handler Values   // has those of HandlerTable
	Limit   Values   // has those of LimitTable: the limit of the handler itself. Its audit is also for the zones and the policy.
	Matches bool     // this limit has a matcher
	Zones   []Values // further limits
	Policy  Values   // has those of PolicyTable; nil without a policy

	// IPv6Prefix is that of limits that have none of their own; "" is the default.
	IPv6Prefix string

	Parse                   ParseText
	KeyExample, UserExample string // placeholders for errors about the policy
}

// PartError is an error about the policy, the history or a zone of a configuration.
type PartError struct {
	Zone int // the index in Configuration.Zones, PolicyPart or HistoryPart
	Name string
	Err  error
}

func (e *PartError) Error() string { return e.Name + ": " + e.Err.Error() }

// Unwrap returns the error without the name of the part.
func (e *PartError) Unwrap() error { return e.Err }

func zoneError(at int, prefix string, err error) error {
	return &PartError{Zone: at, Name: ZoneName(at, prefix), Err: err}
}

// ZoneName is the name of a zone in errors. at is the index of the zone.
func ZoneName(at int, prefix string) string {
	if prefix == "" {
		return "zone " + strconv.Itoa(at+1)
	}
	return "zone " + strconv.Quote(prefix)
}

// Compile checks a configuration, and returns its Site and the settings of the handler. The Site has no store yet, nor what
// a proxy adds. Limits are in the order of the configuration: that of the handler first, if it has one. Errors are
// *ratelimit.FieldError, or PartErrors with those.
func (c *Configuration) Compile() (*Site, *Settings, error) {
	read := &Settings{}
	if err := Read(HandlerTable, c.Handler, read); err != nil {
		return nil, nil, err
	}
	site := &Site{Decider: Decider{Timeout: read.Timeout, OnError: read.OnError}, Fields: read.Fields, Exempt: read.Exempt}
	if _, err := ParseAudit(c.Limit["audit"], history.Audit{}); err != nil {
		return nil, nil, err
	}
	var err error
	if c.Policy != nil {
		if site.Policy, err = NewSitePolicy(c.Policy, c.Parse, c.KeyExample, c.UserExample); err != nil {
			return nil, nil, &PartError{Zone: PolicyPart, Name: "policy", Err: err}
		}
	}
	hasLimit := c.hasLimit()
	if len(c.Zones) > 0 && hasLimit && c.Limit["limit"] == "" {
		return nil, nil, limitMissing(c.Limit)
	}
	if hasLimit || len(c.Zones) == 0 && c.Policy == nil {
		if err := c.add(site, c.Limit); err != nil {
			return nil, nil, err
		}
	}
	own := len(site.Zones)
	for i := range c.Zones {
		if err := c.add(site, c.Zones[i]); err != nil {
			return nil, nil, zoneError(i, c.Zones[i]["prefix"], err)
		}
	}
	if at, err := CheckRows(site.Zones); err != nil {
		return nil, nil, zoneError(at-own, site.Zones[at].Limit.Prefix, err)
	}
	return site, read, nil
}

// hasLimit reports whether there is any setting of a limit of the handler itself, besides its audit.
func (c *Configuration) hasLimit() bool {
	for i := range LimitTable {
		if name := LimitTable[i].Name; name != "audit" && c.Limit[name] != "" {
			return true
		}
	}
	return c.Matches
}

// limitMissing is the error of a configuration that has zones and a setting of a limit of its own, such as a prefix or a
// key, but not the limit.
func limitMissing(from Values) error {
	stray := "other settings of a limit"
	if from["key"] != "" {
		stray = "key"
	}
	if from["prefix"] != "" {
		stray = "prefix"
	}
	return &ratelimit.FieldError{Field: "limit", Want: "given here, or drop the " + stray + ": the zones have limits of their own"}
}

// add compiles a limit, and checks what it may have only with a policy, or only without. A key that contains the API key of
// the policy is a secret.
func (c *Configuration) add(s *Site, from Values) error {
	if from["ipv6_prefix"] == "" {
		from["ipv6_prefix"] = c.IPv6Prefix
	}
	z, err := NewZone(from, c.Parse)
	if err != nil {
		return err
	}
	s.Zones = append(s.Zones, z)
	if s.Policy == nil {
		return nil
	}
	if key := s.Policy.Key; key != nil && z.HashKey == nil {
		z.Secret = z.Secret || z.Key.Shares(key)
		z.Hit.Secret = z.Secret
		for i := range z.alternatives {
			one := &z.alternatives[i]
			one.secret = one.secret || one.text.Shares(key)
		}
	}
	return CheckPolicyRows(&z.Limit)
}
