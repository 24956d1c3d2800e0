package traefikplugin

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// setup holds a compiled configuration and its resources. All routers with the middleware share it. After a
// reload, routers share the same setup if neither the configuration nor a file with a DSN has changed. The
// process's mutex guards the fields below config.
type setup struct {
	handler  *handler // a template without an upstream
	compiled *compiledConfig
	config   *Config

	load  <-chan struct{} // closed when the latest load of Traefik's configuration with this setup ends
	loads int             // the number of loads that use the setup
	ends  int             // the number of times that loads became 0
}

// setup returns the setup of a middleware and holds it until ctx ends. The contexts of all middlewares of one
// load end together.
func (p *process) setup(ctx context.Context, config *Config, name string) (*setup, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.setups[name]
	if s != nil && !reflect.DeepEqual(config, s.config) {
		s = nil
	}
	if s != nil && s.load == ctx.Done() {
		return s, nil // another router called setup in this load
	}
	if s == nil || s.compiled.dsnChanged() {
		fresh, err := newSetup(config, name, p)
		if err != nil {
			return nil, err
		}
		s = fresh
		p.setups[name] = s
	}
	s.load = ctx.Done()
	s.loads++
	p.compareZones(s, name)
	context.AfterFunc(ctx, func() {
		defer logPanic()
		p.release(name, s)
	})
	return s, nil
}

// compareZones logs an error if a limit of a middleware counts in another way than an earlier limit of the
// load on the same rows. Both middlewares stay, because a Traefik without them would not limit at all. The
// caller holds the mutex.
func (p *process) compareZones(s *setup, name string) {
	if p.load != s.load {
		p.load, p.conflicts = s.load, &serve.Conflicts{}
	}
	h := s.handler
	err := p.conflicts.Add(h.databases.Limits.Settings.DSN, "middleware "+name, h.site.Zones)
	if err != nil {
		p.logOnce("conflicts of "+name, name, host.Line{Level: host.Error, Text: err.Error()})
	}
}

// newSetup compiles a configuration. The caller holds the mutex.
func newSetup(config *Config, name string, p *process) (*setup, error) {
	compiled, err := config.compile()
	if err != nil {
		return nil, err
	}
	site := compiled.site
	sources, err := compiled.dataSources()
	if err != nil {
		return nil, err
	}
	h := &handler{process: p, site: site}
	site.Log = func(line host.Line) { write(name, line) }
	if h.databases, err = site.Open(p.host, sources); err != nil {
		return nil, err
	}
	h.databases.Prepare()
	h.limits = site.LimitsOfAll()
	h.requests = queueOf(h.databases.Limits, site.Timeout)
	p.logOnce("", "", host.Line{Text: "rate limits are enforced by " + program})
	p.logOnce("middleware "+name, "", host.Line{Text: h.describe(name, compiled.policy)})
	return &setup{handler: h, compiled: compiled, config: config}, nil
}

// describe describes the compiled configuration for the log, without DSNs.
func (h *handler) describe(name string, policy settings.Values) string {
	text := "middleware " + name + ": "
	for _, z := range h.site.Zones {
		text += fmt.Sprintf("limit %s: %s (%s, %s), key %s; ", z.Limit.Prefix, z.Configured["limit"],
			z.Limit.Algorithm.String(), string(z.Mode), z.Configured["key"])
	}
	if policy != nil {
		text += fmt.Sprintf("policy with apiKey %q and user %q; ", policy["api_key"], policy["user"])
	}
	return text + "onError " + string(h.site.OnError)
}

// grace returns the longest graceTimeOut of the middlewares.
func (p *process) grace() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest := time.Duration(0)
	for _, s := range p.setups {
		if s.compiled.grace > longest {
			longest = s.compiled.grace
		}
	}
	return longest
}

// release removes a load from a setup. The setup ends a delay after its last load, because requests may still
// arrive and the next load may use the setup again.
func (p *process) release(name string, s *setup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.loads--
	if s.loads > 0 {
		return
	}
	s.ends++
	ends := s.ends
	time.AfterFunc(s.handler.databases.After, func() {
		defer logPanic()
		p.end(name, s, ends)
	})
}

// end ends a setup unless another load has used it since s.ends had the value ends.
func (p *process) end(name string, s *setup, ends int) {
	p.mu.Lock()
	unused := s.loads == 0 && s.ends == ends
	if unused && p.setups[name] == s {
		delete(p.setups, name)
	}
	p.mu.Unlock()
	if unused {
		s.handler.databases.EndIdle()
	}
}
