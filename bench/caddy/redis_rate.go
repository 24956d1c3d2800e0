package main

import (
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	redisrate "github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

func init() {
	caddy.RegisterModule((*redisRate)(nil))
	httpcaddyfile.RegisterHandlerDirective("redis_rate", parseRedisRate)
	httpcaddyfile.RegisterDirectiveOrder("redis_rate", httpcaddyfile.Before, "basic_auth")
}

// redisRate is a handler that limits requests with redis_rate, as a Go program would: one
// command to Redis for each key of a request, one after another until one refuses.
type redisRate struct {
	Address string          `json:"address"`
	Limit   redisrate.Limit `json:"limit"`
	Keys    []string        `json:"keys"`

	client  *redis.Client
	limiter *redisrate.Limiter
}

func (*redisRate) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.redis_rate",
		New: func() caddy.Module { return new(redisRate) }}
}

// parseRedisRate parses "redis_rate <address> <events> <window> <key>...".
func parseRedisRate(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	var events, window string
	r := &redisRate{}
	h.Next()
	if !h.Args(&r.Address, &events, &window) {
		return nil, h.ArgErr()
	}
	r.Keys = h.RemainingArgs()
	n, err := strconv.Atoi(events)
	if err != nil {
		return nil, h.Errf("events: %v", err)
	}
	period, err := time.ParseDuration(window)
	if err != nil {
		return nil, h.Errf("window: %v", err)
	}
	r.Limit = redisrate.Limit{Rate: n, Burst: n, Period: period}
	return r, nil
}

// Provision connects to Redis with the defaults of go-redis.
func (r *redisRate) Provision(caddy.Context) error {
	r.client = redis.NewClient(&redis.Options{Addr: r.Address})
	r.limiter = redisrate.NewLimiter(r.client)
	return nil
}

func (r *redisRate) Cleanup() error { return r.client.Close() }

func (r *redisRate) ServeHTTP(w http.ResponseWriter, request *http.Request, next caddyhttp.Handler) error {
	replacer := request.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	var least *redisrate.Result // the result to show the client
	for _, key := range r.Keys {
		result, err := r.limiter.Allow(request.Context(), replacer.ReplaceAll(key, ""), r.Limit)
		if err != nil {
			return caddyhttp.Error(http.StatusServiceUnavailable, err)
		}
		if least == nil || result.Allowed == 0 || result.Remaining < least.Remaining {
			least = result
		}
		if result.Allowed == 0 {
			break
		}
	}
	header := w.Header()
	header.Set("X-RateLimit-Limit", strconv.Itoa(r.Limit.Burst))
	header.Set("X-RateLimit-Remaining", strconv.Itoa(least.Remaining))
	header.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(least.ResetAfter).Unix(), 10))
	if least.Allowed == 0 {
		header.Set("Retry-After", strconv.Itoa(int(least.RetryAfter/time.Second)+1))
		return caddyhttp.Error(http.StatusTooManyRequests, nil)
	}
	return next.ServeHTTP(w, request)
}
