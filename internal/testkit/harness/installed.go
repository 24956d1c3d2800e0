package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
)

// Installed returns the path of a program. If the program is missing, Installed first tries to install
// Debian's package of the same name.
func Installed(ctx context.Context, name string) (string, error) {
	if err := install.Debian(ctx, os.Stderr, name, func() bool { return find(name) != "" },
		name); err != nil {
		return "", fmt.Errorf(
			"no %s on this machine: install it (Debian, Ubuntu: apt-get install %[1]s) (%w)", name, err)
	}
	return find(name), nil
}

// find returns the path of a program, or "". It also searches the folders of Debian's servers, because only
// root's PATH contains them.
func find(name string) string {
	for _, folder := range []string{"", "/usr/sbin/", "/usr/local/sbin/"} {
		if path, err := exec.LookPath(folder + name); err == nil {
			return path
		}
	}
	return ""
}

// RunNginx runs an nginx until the test's end. Its configuration listens on the address, and has no files
// outside of a folder of the test.
func RunNginx(t testing.TB, address, config string) *Process {
	t.Helper()
	program, err := Installed(t.Context(), "nginx")
	if err != nil {
		t.Fatal(err)
	}
	settings, dir := "http {\n\taccess_log off;\n", t.TempDir()
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		settings += "\t" + name + "_temp_path " + name + ";\n"
	}
	config = Replace(t, config, "http {\n", settings)
	if os.Geteuid() == 0 { // the folder is root's
		config = "user root;\n" + config
	}
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	n := Start(t, Program{Path: program, Dir: dir, Args: []string{"-e", "stderr", "-p", dir, "-c",
		"nginx.conf", "-g", "daemon off; pid pid;"}})
	n.AwaitAddress(t, address)
	return n
}
