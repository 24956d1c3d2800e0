package serve

import (
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Conflicts finds limits on the same rows that count in different ways: by another algorithm, window or unit,
// or for token_bucket and gcra by other events or another burst. A row that two such limits change in turns
// limits nothing: a window of 5 s, for example, would reset the count of a window of an hour. The zero value
// is ready for use.
type Conflicts struct{ earlier map[prefixKey][]placedZone }

// prefixKey names the rows of a prefix.
type prefixKey struct {
	dsn     string
	durable bool
	prefix  string
}

// placedZone is the first limit that counts in some way by some fixed key, and its place in the
// configuration.
type placedZone struct {
	zone  *Zone
	place string
}

// Add adds the limits of a handler that counts in the database dsn. It returns a *ratelimit.FieldError if an
// earlier limit could count on the same rows in another way. place names the handler.
func (c *Conflicts) Add(dsn, place string, zones []*Zone) error {
	if c.earlier == nil {
		c.earlier = map[prefixKey][]placedZone{}
	}
	var err error
	for _, z := range zones {
		if z.Mode == option.Off {
			continue
		}
		key := prefixKey{dsn: dsn, durable: z.Limit.Durable, prefix: z.Limit.Prefix}
		isNew := true
		for _, e := range c.earlier[key] {
			same := z.Unit == e.zone.Unit && countAlike(&z.Limit, &e.zone.Limit)
			isNew = isNew && !(same && z.Key.Fixed == e.zone.Key.Fixed)
			if !same && !reading.Differ(z.Key, e.zone.Key) && err == nil {
				want := fmt.Sprintf("another name, because %s has %s, and %s has %s: limits on the same "+
					"rows need the same algorithm, window and unit, and the same events and burst "+
					"for token_bucket and gcra", place, countingText(z), e.place, countingText(e.zone))
				err = option.Invalid("prefix", z.Limit.Prefix, want)
			}
		}
		if isNew {
			c.earlier[key] = append(c.earlier[key], placedZone{zone: z, place: place})
		}
	}
	return err
}

func countAlike(a, b *ratelimit.Limit) bool {
	inBucket := a.Algorithm == ratelimit.TokenBucket || a.Algorithm == ratelimit.GCRA
	return a.Algorithm == b.Algorithm && a.Window == b.Window && a.Calendar == b.Calendar &&
		strings.TrimSuffix(a.TimeZone, "UTC") == strings.TrimSuffix(b.TimeZone, "UTC") &&
		(!inBucket || a.Events == b.Events && a.Capacity() == b.Capacity())
}

// countingText describes how a limit counts by its settings.
func countingText(z *Zone) string {
	text := z.Limit.Algorithm.String() + " " + z.Configured["limit"]
	if burst := z.Configured["burst"]; burst != "" {
		text += " burst " + burst
	}
	if z.CostSource.CountsTokens() {
		text += " " + z.CostSource.Text
	}
	return text
}
