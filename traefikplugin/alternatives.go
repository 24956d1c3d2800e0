package traefikplugin

import (
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// keyOfAlternatives stands for a key with alternatives, which chooseKey makes.
var keyOfAlternatives = template{{from: fromAlternatives}}

// chooseKey sets the key of a hit to the first alternative that is not empty, or to "".
func chooseKey(f *hitTemplate, at int, r *http.Request, hit *ratelimit.Hit) {
	hit.Key = ""
	hit.Secret = false
	alternatives := f.first[at]
	for i := range alternatives {
		text := expand(alternatives[i].text, r, f.addresses, f.ipv4s[at], f.ipv6s[at])
		if text != "" {
			hit.Key = policy.AlternativeKey(i+1, text, alternatives[i].secret)
			return
		}
	}
}
