package settings

import (
	"math"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// History configures the addresses in a proxy's records, and how long the database keeps the history.
type History struct {
	Address AddressMode

	// Retention overrides how long the database keeps parts of the history.
	Retention []Retention
}

// Retention sets how long the database keeps a part of the history.
type Retention struct {
	What string        // the part: audit or metrics_day
	Keep time.Duration // 24 hours or more
}

// Audit selects the requests of a limit that are in the audit log.
type Audit struct {
	Level Level
	Share float64 // for AuditSample, the fraction of the requests that passed: 0 < Share <= 1
}

// Level selects the requests that are in the audit log.
type Level uint8

const (
	// AuditOff selects no requests.
	AuditOff Level = iota
	// AuditDenied selects requests that were refused, that a shadow rule would have refused, or that have no
	// decision.
	AuditDenied
	// AuditSample selects what AuditDenied selects, and a random share of the requests that passed.
	AuditSample
	// AuditAll selects all requests.
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

// ParseAudit parses an audit setting: off, denied, all, or sample and a percentage. For "" it returns
// fallback.
func ParseAudit(text string, fallback Audit) (Audit, error) {
	if text == "" {
		return fallback, nil
	}
	if level, ok := auditLevels[unquoted(text)]; ok {
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

// checkAudit validates the audit setting of a limit, and stores nothing: serve.Site parses the setting again,
// because its default depends on the handler.
func checkAudit(_ *Settings, text string) error {
	_, err := ParseAudit(text, Audit{})
	return err
}

// MaxAudit returns the one of a and b that records more requests.
func MaxAudit(a, b Audit) Audit {
	if b.Level > a.Level || b.Level == a.Level && b.Share > a.Share {
		return b
	}
	return a
}
