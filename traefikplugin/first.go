package traefikplugin

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// askFirst is what happens to a request before the queue without a policy, unless the handler is plain. It
// reports whether the queue decides the request. Otherwise the request is admitted or answered.
func askFirst(h *handler, p *pendingRequest) (queued bool) {
	queued = false // after a panic, too
	defer contain(h, p)
	chooseHits(h, p)
	if len(p.hits.hits) == 0 {
		p.admitted = true
		forget(p)
		return false
	}
	return fly(h, p)
}

// fly makes the flight of a request that may hold slots or wait. It reports whether the queue decides the request: a request that may
// wait is decided without it, as often as it takes.
func fly(h *handler, p *pendingRequest) bool {
	if !p.hits.flies && (!p.asked || !edge.HasSlots(p.verdict.Hits)) {
		return true
	}
	p.flight = edge.NewFlight(p.r.Context())
	if !p.hits.waiting {
		return true
	}
	p.began = time.Now()
	decideLate(h, p, nil)
	return false
}

// chooseHits leaves out the hits of the configuration that are not for a request.
func chooseHits(h *handler, p *pendingRequest) {
	if h.exempt != nil && h.exempt.IsExempt(p.r.Header, addressOf(h.hits.addresses, p.r)) {
		p.hits = h.none
	} else if h.selection != nil {
		p.hits = h.selection.choose(p.r)
	}
}

// secretText is what {env.NAME} or {file.PATH} gives, the placeholders of Caddy for secrets.
func secretText(text string) (string, error) {
	name := strings.TrimSuffix(text, "}")
	if path := strings.TrimPrefix(name, "{file."); path != name {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		return strings.TrimSpace(string(content)), nil
	}
	variable := strings.TrimPrefix(name, "{env.")
	if variable == name || os.Getenv(variable) == "" {
		return "", errors.New("only {env.NAME} and {file.PATH} can give it, and not empty")
	}
	return os.Getenv(variable), nil
}
