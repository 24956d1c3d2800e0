package caddymodule

import (
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
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

// adminServers are the servers of the API by DSN. They connect when they are asked.
var adminServers = struct {
	mu    sync.Mutex
	byDSN map[string]*page.Server
}{byDSN: map[string]*page.Server{}}

func (a *adminAPI) serve(w http.ResponseWriter, r *http.Request) error {
	dsn, err := usedDSN()
	if err != nil {
		return err
	}
	adminServers.mu.Lock()
	s := adminServers.byDSN[dsn]
	if s == nil {
		if s, err = page.New(page.Options{DSN: dsn, Write: true, Version: version()}); err == nil {
			adminServers.byDSN[dsn] = s
		}
	}
	adminServers.mu.Unlock()
	if err != nil {
		return caddy.APIError{HTTPStatus: http.StatusInternalServerError, Err: err}
	}
	http.StripPrefix(adminPath, s.API()).ServeHTTP(w, r)
	return nil
}

// usedDSN is the DSN of the database in which the handlers of the config count.
func usedDSN() (string, error) {
	found := map[string]bool{}
	if loaded, err := caddy.ActiveContext().AppIfConfigured("pg_ratelimit"); err == nil { // else no handler has loaded it
		for _, u := range loaded.(*App).used {
			if s, ok := u.settings.(edge.StoreSettings); ok && s.DSN != edge.MemoryDSN {
				found[s.DSN] = true
			}
		}
	}
	if len(found) != 1 {
		text := "no handler of the configuration counts in a database"
		if len(found) > 1 {
			text = "the configuration has several databases: use caddy pg-ratelimit page with --dsn"
		}
		return "", caddy.APIError{HTTPStatus: http.StatusNotFound, Message: text}
	}
	for dsn := range found {
		return dsn, nil
	}
	return "", nil
}

// Interface guards
var _ caddy.AdminRouter = (*adminAPI)(nil)
