package caddymodule

import (
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
)

func init() {
	caddy.RegisterModule(new(adminAPI))
}

// adminAPI is the API of the page at Caddy's admin endpoint, below /pg_ratelimit/. The endpoint itself says who may
// use it, who could replace the whole configuration as well.
type adminAPI struct{}

// CaddyModule returns the Caddy module information.
func (*adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.pg_ratelimit", New: func() caddy.Module { return new(adminAPI) }}
}

const adminPath = "/pg_ratelimit/"

// Routes returns the route of the API.
func (a *adminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: adminPath, Handler: caddy.AdminHandlerFunc(a.serve)}}
}

// adminServers are the servers of the API by the DSNs of the limits, the policy and the history. They connect when
// they are asked.
var adminServers = struct {
	mu     sync.Mutex
	byDSNs map[[3]string]*page.Server
}{byDSNs: map[[3]string]*page.Server{}}

func (a *adminAPI) serve(w http.ResponseWriter, r *http.Request) error {
	dsn, at, err := usedDSNs()
	if err != nil {
		return err
	}
	key := [3]string{dsn, at.policy, at.history}
	adminServers.mu.Lock()
	s := adminServers.byDSNs[key]
	if s == nil {
		if s, err = page.New(page.Options{DSN: dsn, Policy: at.policy, History: at.history, Write: true, Version: version()}); err == nil {
			adminServers.byDSNs[key] = s
		}
	}
	adminServers.mu.Unlock()
	if err != nil {
		return caddy.APIError{HTTPStatus: http.StatusInternalServerError, Err: err}
	}
	http.StripPrefix(adminPath, s.API()).ServeHTTP(w, r)
	return nil
}

// usedDSNs are the DSN of the database in which the handlers of the config count, and those of their policy and history.
func usedDSNs() (string, datasets, error) {
	var found map[string]datasets
	if loaded, err := caddy.ActiveContext().AppIfConfigured("pg_ratelimit"); err == nil { // else no handler has loaded it
		found = loaded.(*App).datasets
	}
	if len(found) != 1 {
		text := "no handler of the configuration counts in a database"
		if len(found) > 1 {
			text = "the configuration counts in several databases: use caddy pg-ratelimit page with --dsn"
		}
		return "", datasets{}, caddy.APIError{HTTPStatus: http.StatusNotFound, Message: text}
	}
	for dsn, at := range found {
		return dsn, at, nil
	}
	return "", datasets{}, nil
}

// Interface guards
var _ caddy.AdminRouter = (*adminAPI)(nil)
