package serve

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Configuration is the configuration of a handler as a proxy has it, in text.
type Configuration struct {
	Handler settings.Values // of settings.HandlerTable
	// the limit of the handler itself. Its audit applies to the zones and the policy, too.
	Limit   settings.Values
	Matches bool              // this limit has a matcher
	Zones   []settings.Values // further limits
	Policy  settings.Values   // of settings.PolicyTable; nil without a policy

	// IPv6Prefix is the prefix of limits that have none of their own; "" is the default.
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

// The parts of a configuration in a PartError that are not zones.
const (
	PolicyPart  = -1
	HistoryPart = -2
)

func (e *PartError) Error() string { return e.Name + ": " + e.Err.Error() }

// Unwrap returns the error without the name of the part.
func (e *PartError) Unwrap() error { return e.Err }

// ZoneName returns the name of a zone in errors. at is the index of the zone.
func ZoneName(at int, prefix string) string {
	if prefix == "" {
		return "zone " + strconv.Itoa(at+1)
	}
	return "zone " + strconv.Quote(prefix)
}

// Compile checks a configuration, and returns its Site and the settings of the handler. The Site lacks its
// store and what a proxy adds. Limits are in the order of the configuration: that of the handler first, if it
// has one. Errors are *ratelimit.FieldError, or *PartError with one.
func (c *Configuration) Compile() (*Site, *settings.Settings, error) {
	read := &settings.Settings{}
	if err := settings.Read(settings.HandlerTable, c.Handler, read); err != nil {
		return nil, nil, err
	}
	s := &Site{Timeout: read.Timeout, OnError: read.OnError, Fields: read.Fields, Exempt: read.Exempt}
	if _, err := settings.ParseAudit(c.Limit["audit"], settings.Audit{}); err != nil {
		return nil, nil, err
	}
	var err error
	if c.Policy != nil {
		if s.Policy, err = newPolicy(c.Policy, c.Parse, c.KeyExample, c.UserExample); err != nil {
			return nil, nil, &PartError{Zone: PolicyPart, Name: "policy", Err: err}
		}
	}
	hasLimit := c.hasLimit()
	if len(c.Zones) > 0 && hasLimit && c.Limit["limit"] == "" {
		return nil, nil, limitMissing(c.Limit)
	}
	if hasLimit || len(c.Zones) == 0 && c.Policy == nil {
		if err := c.add(s, c.Limit); err != nil {
			return nil, nil, err
		}
	}
	own := len(s.Zones)
	for i := range c.Zones {
		if err := c.add(s, c.Zones[i]); err != nil {
			name := ZoneName(i, c.Zones[i]["prefix"])
			return nil, nil, &PartError{Zone: i, Name: name, Err: err}
		}
	}
	if at, err := checkRows(s.Zones); err != nil {
		name := ZoneName(at-own, s.Zones[at].Limit.Prefix)
		return nil, nil, &PartError{Zone: at - own, Name: name, Err: err}
	}
	return s, read, nil
}

// hasLimit reports whether the handler itself has any setting of a limit, besides its audit.
func (c *Configuration) hasLimit() bool {
	for i := range settings.LimitTable {
		if name := settings.LimitTable[i].Name; name != "audit" && c.Limit[name] != "" {
			return true
		}
	}
	return c.Matches
}

// limitMissing returns the error of a configuration with zones and a setting of a limit of its own, such as a
// prefix or a key, but without the limit.
func limitMissing(from settings.Values) error {
	stray := "other settings of a limit"
	if from["key"] != "" {
		stray = "key"
	}
	if from["prefix"] != "" {
		stray = "prefix"
	}
	want := "given here, or drop the " + stray + ": the zones have limits of their own"
	return &ratelimit.FieldError{Field: "limit", Want: want}
}

// RulePrefix begins the prefixes of the policy's limits. With a policy, no limit of a configuration may begin
// with it: a request that is charged to both could be on one row twice.
const RulePrefix = history.RulePrefix

// add compiles a limit.
func (c *Configuration) add(s *Site, from settings.Values) error {
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
	if s.Policy.Key != nil {
		z.hideIfShared(s.Policy.Key)
	}
	if strings.HasPrefix(z.Limit.Prefix, RulePrefix) {
		want := "a name that does not begin with " + RulePrefix + ": the counters of the policy begin with " +
			RulePrefix
		return &ratelimit.FieldError{Field: "prefix", Value: z.Limit.Prefix, Want: want}
	}
	return nil
}
