package settings

import (
	"math"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// History says what a proxy adds to its records, and how long the database keeps them.
type History struct {
	Address AddressMode

	// Retention lists the parts of the history that the database keeps for another time than it has set.
	Retention []Retention
}

// Retention says how long a part of the history is kept.
type Retention struct {
	What string        // audit or metrics_day
	Keep time.Duration // 24 hours or more
}

// Audit says which requests of a limit the audit log has.
type Audit struct {
	Level Level
	Share float64 // of AuditSample: from above 0 to 1
}

// Level selects the requests that the audit log has.
type Level uint8

const (
	// AuditOff selects none.
	AuditOff Level = iota
	// AuditDenied selects those that were refused, that a shadow rule would have refused, or that have
	// no decision.
	AuditDenied
	// AuditSample selects the same as AuditDenied, and a random share of those that passed.
	AuditSample
	// AuditAll selects all.
	AuditAll
)

// AddressMode selects how addresses are written to the audit log.
type AddressMode string

// The values of AddressMode.
const (
	AddressFull   AddressMode = "full"   // the whole address
	AddressPrefix AddressMode = "prefix" // the first 24 bits of an IPv4 address, or 48 of an IPv6 address
	AddressOff    AddressMode = "off"    // nothing
)

const wantAudit = "off, denied, all, or sample and a percentage above 0% and up to 100%, as in sample 1%"

var auditLevels = map[string]Level{"off": AuditOff, "denied": AuditDenied, "all": AuditAll}

// ParseAudit reads which requests are in the audit log: off, denied, all, or sample and a percentage; ""
// is unset.
func ParseAudit(text string, unset Audit) (Audit, error) {
	if text == "" {
		return unset, nil
	}
	if level, ok := auditLevels[text]; ok {
		return Audit{Level: level}, nil
	}
	words := strings.Fields(text)
	if len(words) == 2 && words[0] == "sample" {
		if share, err := parseShare(words[1], math.SmallestNonzeroFloat64, 1); err == nil {
			return Audit{Level: AuditSample, Share: share}, nil
		}
	}
	return Audit{}, &ratelimit.FieldError{Field: "audit", Value: text, Want: wantAudit}
}

// checkAudit checks the audit of a limit. serve.Site parses it, because its default depends on the handler.
func checkAudit(_ *Settings, text string) error {
	_, err := ParseAudit(text, Audit{})
	return err
}

// MoreAudit returns the one of two audits that records more requests.
func MoreAudit(a, b Audit) Audit {
	if b.Level > a.Level || b.Level == a.Level && b.Share > a.Share {
		return b
	}
	return a
}
