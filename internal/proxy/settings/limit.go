package settings

import (
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ConfiguredLimit is a valid limit of a configuration. The adapters read its key, its audit and the text of
// its cost.
type ConfiguredLimit struct {
	Limit      ratelimit.Limit
	Cost       int64 // 0 if a placeholder gives the cost
	Unit       option.Unit
	Output     int64              // the setting output; 0 without it
	Batches    string             // the setting batches; "" without it
	CostSource *option.CostSource // or of a limit of tokens
	HashKey    *bool              // nil means to hash only keys that contain a secret
	IPv4, IPv6 int                // the leading bits of an address that belong to the key
	Mode       option.Mode
	WithoutKey option.Without
	Hidden     bool // no field of a response describes the limit

	// Alternatives lists the alternatives of the key. The first alternative that is not empty is the key of a
	// request. Nil means that the key has no alternatives.
	Alternatives []string
}

// ReadLimit reads and validates a limit; see Read. Every error has the name and the text of a setting, also
// an error of ratelimit.Limit.Validate.
func ReadLimit(values Values) (*ConfiguredLimit, error) {
	var read Settings
	if err := Read(LimitTable, values, &read); err != nil {
		return nil, err
	}
	err := read.Limit.Limit.Validate()
	if err == nil {
		err = readTokens(&read.Limit, values)
	}
	fieldErr, ok := err.(*ratelimit.FieldError)
	if !ok {
		return &read.Limit, err
	}
	switch fieldErr.Field {
	case "events", "window", "calendar", "zone":
		fieldErr.Field = "limit"
	}
	if text := values[fieldErr.Field]; text != "" {
		fieldErr.Value = text
	}
	return nil, fieldErr
}

// readTokens sets the CostSource of a limit of tokens, which is durable and waits for the disk unless its
// settings say otherwise. It refuses settings that do not suit the unit.
func readTokens(l *ConfiguredLimit, values Values) error {
	tokens, err := option.TokensOf(l.Unit, l.Output, l.Batches, &l.Limit)
	if err != nil {
		return err
	}
	if tokens == nil {
		for _, name := range []string{"output", "batches"} {
			if text := values[name]; text != "" {
				return option.Invalid(name, text, "left out, or with a unit of tokens")
			}
		}
		return nil
	}
	for _, name := range []string{"cost", "settle"} {
		if text := values[name]; text != "" {
			return option.Invalid(name, text, tokens.WantNone())
		}
	}
	l.CostSource = tokens
	l.Limit.Reserves = true
	l.Limit.Unit = string(l.Unit)
	if values["durable"] == "" {
		l.Limit.Durable = true
	}
	if values["synchronous_commit"] == "" {
		l.Limit.SynchronousCommit = l.Limit.Durable
	}
	return nil
}

// readAlgorithm reads the algorithm of a limit.
func readAlgorithm(dst *Settings, text string) (err error) {
	dst.Limit.Limit.Algorithm, err = ratelimit.ParseAlgorithm(text)
	return err
}

// readHashKey reads ConfiguredLimit.HashKey.
func readHashKey(dst *Settings, text string) error {
	hash, err := ParseSwitch("", text)
	if text != "" {
		dst.Limit.HashKey = &hash
	}
	return err
}

// readCost reads ConfiguredLimit.Cost. If the text has a placeholder (a brace), Cost stays 0, because each
// request then has its own cost.
func readCost(dst *Settings, text string) error {
	if strings.Contains(text, "{") {
		return nil
	}
	cost, err := parseNumber(text, ratelimit.MaxEvents)
	dst.Limit.Cost = cost
	return err
}

// readRate reads the events and the window of a limit, or for ratelimit.InFlight the number of requests in
// flight.
func readRate(dst *Settings, text string) error {
	l := &dst.Limit.Limit
	if l.Algorithm != ratelimit.InFlight {
		rate, err := ratelimit.ParseRate(text)
		l.Events, l.Window, l.Calendar, l.TimeZone = rate.Events, rate.Window, rate.Calendar, rate.TimeZone
		return err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return option.Invalid("", text, "the number of concurrent requests, such as 5, for in_flight")
	}
	l.Events = n
	return nil
}

// readLease reads the lease of a limit, such as "5%", or "off".
func readLease(dst *Settings, text string) error {
	if text == "off" {
		return nil
	}
	share, err := option.ParseShare(text, ratelimit.MinLease, ratelimit.MaxLease)
	dst.Limit.Limit.Lease = share
	return err
}

// minLeaseWindow is the shortest window of a limit with leases, see package lease.
const minLeaseWindow = 200 * time.Millisecond

// Warning is a note for operators about a valid setting.
type Warning struct {
	Field string // the setting's name
	Text  string // completes the sentence that Field begins
}

// Warnings returns notes for operators about a valid limit.
func (l *ConfiguredLimit) Warnings() []Warning {
	var warnings []Warning
	warn := func(applies bool, field, text string) {
		if applies {
			warnings = append(warnings, Warning{field, text})
		}
	}
	limit := &l.Limit
	warn(limit.SynchronousCommit && !limit.Durable, "synchronous_commit",
		"does nothing for a limit that is not durable")
	warn(limit.Lease > 0 && limit.RefillsEvenly(), "lease",
		"does nothing for a token_bucket with a burst below its events")
	warn(limit.Lease > 0 && limit.Window < minLeaseWindow, "lease",
		"does nothing for a window below "+minLeaseWindow.String())
	warn(l.Cost > limit.Capacity(), "cost", "is above the whole quota: no request passes")
	return warnings
}

// readSettle reads ConfiguredLimit.CostSource.
func readSettle(dst *Settings, text string) (err error) {
	dst.Limit.CostSource, err = option.ParseCostSource(text)
	if dst.Limit.CostSource != nil && dst.Limit.Limit.Algorithm == ratelimit.InFlight {
		return option.Invalid("", text, "left out with in_flight: a slot ends with its request")
	}
	return err
}

// checkAudit validates the audit setting of a limit, and stores nothing: serve.Site parses the setting again,
// because its default depends on the handler.
func checkAudit(_ *Settings, text string) error {
	_, err := option.ParseAudit(text, option.Audit{})
	return err
}
