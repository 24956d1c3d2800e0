package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var static embed.FS

// types are the files that are served, by the end of their names.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2", ".json": "application/json", ".txt": "text/plain; charset=utf-8",
}

// serveStatic serves a file of the page. It reports false if there is none.
func serveStatic(w http.ResponseWriter, r *http.Request, name string) bool {
	if name == "" {
		name = "index.html"
	}
	kind := types[path.Ext(name)]
	text, err := static.ReadFile("static/" + name)
	if kind == "" || err != nil || strings.HasPrefix(path.Base(name), ".") {
		return false
	}
	digest := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(digest[:8]) + `"`
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	if r.Method == http.MethodHead {
		return true
	}
	_, _ = w.Write(text) // an error means that the client has closed the connection
	return true
}
