package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// proxy is a Caddy or a Traefik that runs.
type proxy struct {
	spec    *proxySpec
	program *program
	address string
	admin   string // of a Caddy's admin endpoint
	dsn     string // of the database that it counts in; "" is none
}

// startProxy starts a proxy unless it runs already.
func (b *bench) startProxy(ctx context.Context, s *proxySpec) (*proxy, error) {
	if p := b.proxies[s.name]; p != nil {
		return p, nil
	}
	b.progress("starting %s", s.name)
	start := b.startCaddy
	if s.kind == onTraefik {
		if s.redis && b.redis == nil {
			if err := b.startRedis(ctx); err != nil {
				return nil, err
			}
		}
		start = b.startTraefik
	}
	p, err := start(ctx, s)
	if p != nil && p.program != nil {
		b.proxies[s.name] = p
	}
	return p, err
}

// stopProxy stops one.
func (b *bench) stopProxy(p *proxy) error {
	delete(b.proxies, p.spec.name)
	return p.program.stop()
}

// stopProxies stops all, and what they need besides Postgres.
func (b *bench) stopProxies() error {
	var errs []error
	for _, p := range b.proxies {
		errs = append(errs, b.stopProxy(p))
	}
	for _, other := range []**program{&b.redis, &b.upstream} {
		if *other != nil {
			errs = append(errs, (*other).stop())
			*other = nil
		}
	}
	return errors.Join(errs...)
}

// dsnFor is where a proxy counts: a database of its own.
func (b *bench) dsnFor(ctx context.Context, s *proxySpec) (string, error) {
	switch {
	case s.limit == nil:
		return "", nil
	case s.limit.memory:
		return "memory", nil
	}
	return b.postgres.create(ctx)
}

// complaints are lines of a proxy's log about decisions that it could not have.
func (p *proxy) complaints() (string, error) {
	text, err := os.ReadFile(p.program.log)
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(text), "\n") {
		if strings.Contains(line, "no decision") || strings.Contains(line, "database failed") {
			return fmt.Sprintf("%s logged: %s", p.spec.name, line), nil
		}
	}
	return "", nil
}

func splitAddress(address string) (host, port string) {
	host, port, _ = strings.Cut(address, ":")
	return host, port
}
