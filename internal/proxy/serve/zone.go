package serve

import (
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Zone is a compiled limit of a configuration. It does not change after Site.Prepare.
type Zone struct {
	settings.ConfiguredLimit

	Configured settings.Values
	Key        *reading.Key

	// Match reports whether the limit applies to a request. Nil applies to all requests.
	Match func(r *http.Request) (bool, error)
	// Endpoint lists the paths of Match for the history; "" without paths.
	Endpoint string

	// Hit is the template for the hits of requests.
	Hit ratelimit.Hit

	cost        *reading.Text // nil for a fixed cost
	audit       option.Audit
	warnedEmpty int32 // 1 once the log has a warning that the key was empty; atomic
}

// defaultKey is the key of a limit without a configured key.
const defaultKey = "{client_ip}"

// NewZone parses the settings of a limit, and keeps them with their defaults, of which that of ipv6_prefix
// may be "". Errors are *ratelimit.FieldError with the names of settings.LimitTable.
func NewZone(configured settings.Values, ipv6Prefix string, parse reading.ParseText) (*Zone, error) {
	values := settings.Values{"key": defaultKey, "ipv6_prefix": ipv6Prefix}
	for name, value := range configured {
		if value != "" {
			values[name] = value
		}
	}
	read, err := settings.ReadLimit(values)
	if err != nil {
		return nil, err
	}
	z := &Zone{ConfiguredLimit: *read, Configured: values}
	if z.Key, err = reading.NewKey(read, values["key"], parse); err != nil {
		return nil, err
	}
	if z.Cost == 0 {
		if z.cost, err = parse("cost", values["cost"]); err != nil {
			return nil, err
		}
	}
	independent := z.Mode == option.Shadow
	z.Hit = ratelimit.Hit{Limit: &z.Limit, Cost: z.Cost, Secret: z.Key.Secret, Independent: independent}
	return z, nil
}

// auditOf returns the audit setting of a zone, which Compile has validated. own is that of the handler.
func (z *Zone) auditOf(own option.Audit) option.Audit {
	audit, _ := option.ParseAudit(z.Configured["audit"], own)
	return audit
}

// warnOfUnknown logs a warning the first time that a client's address is unknown.
func warnOfUnknown(s *Site) {
	if atomic.CompareAndSwapInt32(&s.warnedUnknown, 0, 1) {
		s.Log(host.Line{Level: host.Warn, Text: "the address of a client is unknown: all such clients are " +
			"one client, without bans and exemptions (behind a Unix socket, trust the proxy in front)"})
	}
}

// requiresKey reports whether a zone counts only the requests that have its key.
func requiresKey(z *Zone) bool {
	return z.WithoutKey == option.WithoutSkip || z.WithoutKey == option.WithoutRefuse
}

// withoutEmpty returns the texts of a list that are not empty.
func withoutEmpty(list []string) []string {
	var texts []string
	for _, text := range list {
		if text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// withoutKey reports whether a zone, which requires a key, does not apply to a request that lacks the key, or
// refuses it.
func withoutKey(z *Zone, q *Request) (skips, refuses bool) {
	if keys := reading.Keys(z.Key, &q.Input); keys == nil || len(withoutEmpty(keys)) > 0 {
		return false, false
	}
	if z.WithoutKey == option.WithoutSkip {
		return true, false
	}
	return false, z.Mode == option.Enforce && !policy.IsPreflight(q.HTTP.Method, q.HTTP.Header)
}

// setZoneKeys sets the key of the hit i of a request, and appends further hits if the request has several
// keys. The first time that a key is empty, it logs a warning, because all such requests share one quota.
func setZoneKeys(z *Zone, q *Request, i int, hits []ratelimit.Hit) []ratelimit.Hit {
	keys := reading.Keys(z.Key, &q.Input)
	if len(keys) > 1 && requiresKey(z) {
		keys = withoutEmpty(keys)
	}
	if keys == nil {
		hits[i].Key = reading.SeveralKey
		hits[i].Secret = false
		return hits
	}
	for n, key := range keys {
		at := i
		if n > 0 {
			at = len(hits)
			hits = append(hits, hits[i])
			q.Terms = append(q.Terms, q.Terms[i])
		}
		hits[at].Key = key
		// hits[i] may have the form of an earlier key.
		hits[at].Secret = z.Hit.Secret || strings.HasPrefix(key, reading.Reserved)
		if key == "" && policy.IsPreflight(q.HTTP.Method, q.HTTP.Header) {
			hits[at].Key = reading.PreflightKey(&q.Input)
			hits[at].Secret = false
			continue
		}
		if key == "" && atomic.CompareAndSwapInt32(&z.warnedEmpty, 0, 1) {
			q.Site.Log(host.Line{Level: host.Warn, Prefix: z.Limit.Prefix,
				Text: "the key of a request is empty: all such requests share one quota"})
		}
	}
	return hits
}

// checkRows returns an error and the index of the second limit if two hits of one request could be on the
// same row, which ratelimit.Store does not allow. Limits with the same prefix and table could share a row
// unless both keys are fixed and differ, since a client often chooses the value of a placeholder.
func checkRows(zones []*Zone) (at int, err error) {
	for i, z := range zones {
		for _, earlier := range zones[:i] {
			if z.Limit.Prefix == earlier.Limit.Prefix && z.Limit.Durable == earlier.Limit.Durable &&
				!reading.Differ(z.Key, earlier.Key) {
				want := "another name: an earlier limit on the same request counts under it in the same " +
					"table, where the two keys could be the same"
				return i, option.Invalid("prefix", z.Limit.Prefix, want)
			}
		}
	}
	return 0, nil
}
