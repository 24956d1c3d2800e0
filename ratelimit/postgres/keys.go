package postgres

import (
	"strings"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// storeKeys replaces the keys of a call's hits by the text that stands for them in the
// tables.
func storeKeys(c *batch.Call) {
	for i := range c.Hits {
		h := &c.Hits[i]
		h.Key = h.StoredKey()
	}
}

// storeAllKeys is storeKeys for many calls. Most keys are stored as they are, which one
// look at all of them shows.
func storeAllKeys(calls []*batch.Call) {
	keys := make([]string, 0, len(calls))
	secrets := false
	for _, c := range calls {
		for i := range c.Hits {
			keys = append(keys, c.Hits[i].Key)
			if c.Hits[i].Secret {
				secrets = true
			}
		}
	}
	if !secrets && storedAsTheyAre(keys) {
		return
	}
	for _, c := range calls {
		storeKeys(c)
	}
}

// storedAsTheyAre reports whether StoredKey surely changes none of the keys.
func storedAsTheyAre(keys []string) bool {
	for _, key := range keys {
		if len(key) > ratelimit.MaxKey {
			return false
		}
	}
	text := strings.Join(keys, "\x00")
	return utf8.ValidString(text) && strings.Count(text, "\x00") < len(keys) && !strings.Contains(text, batch.DigestPrefix)
}
