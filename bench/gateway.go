package main

import (
	"net"
	"os/exec"
	"path/filepath"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// gatewayPackage is the gateway of rows that are a gateway.
const gatewayPackage = "@portkey-ai/gateway"

// startGateway starts p as a gateway for language models, which npm installs on first use.
func (b *bench) startGateway(p *proxy) *harness.Process {
	modules := must(npm.Modules(b.ctx, filepath.Join(root, ".cache", "npm"), gatewayPackage+"@1.15.2"))
	_, port, _ := net.SplitHostPort(p.address)
	return b.launch(p.row.name, b.dir, must(exec.LookPath("node")),
		filepath.Join(must(filepath.Abs(modules)), gatewayPackage, "build", "start-server.js"),
		"--port="+port, "--headless")
}

// gatewayHeaders returns the headers by which a gateway finds its upstream.
func gatewayHeaders(p *proxy) string {
	return "\r\nX-Portkey-Provider: openai\r\nX-Portkey-Custom-Host: " + p.upstream + "/v1"
}
