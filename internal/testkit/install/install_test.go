package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

// debian is a machine of a test, with an apt-get of its own.
type debian struct {
	folder string
	conf   string // createcluster.conf, which comes with postgresql-common
	tell   strings.Builder
}

const shippedConf = "# a comment\n#create_main_cluster = true\nstart_conf = 'auto'\n"

// aptGet is a script that does what apt-get would. It writes its calls to the
// file "calls" and the process groups to "groups", brings createcluster.conf
// with postgresql-common, and copies it as the package postgresql sees it.
const aptGet = `#!/bin/sh
cd '$FOLDER'
echo "apt-get $*" >>calls
ps -o pgid= -p $$ | tr -d ' ' >>groups
echo "apt-get is at work"
case "$*" in
*postgresql-common) [ -e createcluster.conf ] || cp shipped createcluster.conf ;;
*postgresql) cp createcluster.conf seen; cp policy-rc.d policy; touch installed ;;
esac
`

// newDebian makes a machine without Postgres. more is added to its apt-get.
func newDebian(t *testing.T, more string) *debian {
	t.Helper()
	d := &debian{folder: t.TempDir()}
	d.conf = filepath.Join(d.folder, "createcluster.conf")
	d.write(t, "shipped", shippedConf)
	d.write(t, "apt-get", strings.ReplaceAll(aptGet+more, "$FOLDER", d.folder))
	d.write(t, "sudo", "#!/bin/sh\nshift; exec \"$@\"\n")
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("PATH", d.folder+":/usr/bin:/bin")
	return d
}

func (d *debian) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.folder, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// read is a file's text, "" if there is no such file.
func (d *debian) read(name string) string {
	text, err := os.ReadFile(filepath.Join(d.folder, name))
	if err != nil {
		return ""
	}
	return string(text)
}

// has reports whether the machine has a file.
func (d *debian) has(name string) bool {
	_, err := os.Lstat(filepath.Join(d.folder, name))
	return err == nil
}

func (d *debian) install(ctx context.Context) error {
	return machine{d.conf, filepath.Join(d.folder, "policy-rc.d"), &d.tell}.install(ctx, "Postgres server",
		func() bool { return d.has("installed") }, "postgresql-common", "postgresql")
}

// checkConf checks that createcluster.conf is as it was, and that Debian may start services.
func (d *debian) checkConf(t *testing.T, want string) {
	t.Helper()
	if got := d.read("createcluster.conf"); got != want {
		t.Errorf("after the installation createcluster.conf is\n%s\nwant\n%s", got, want)
	}
	if d.has("createcluster.conf.before") || d.has("policy-rc.d") {
		t.Error("the copy of createcluster.conf is left behind, or policy-rc.d")
	}
}

func TestDebiansPackageIsInstalledWithoutItsOwnCluster(t *testing.T) {
	d := newDebian(t, "")
	if err := d.install(t.Context()); err != nil {
		t.Fatalf("%v; the user reads\n%s", err, d.tell.String())
	}
	var steps []string
	for line := range strings.Lines(d.read("calls")) {
		fields := strings.Fields(line)
		steps = append(steps, fields[1]+" "+fields[len(fields)-1])
	}
	if got, want := strings.Join(steps, "; "), "update -q; install postgresql-common; install postgresql"; got != want {
		t.Errorf("apt-get was called with\n%s\nwant\n%s", got, want)
	}
	if seen := d.read("seen"); !strings.Contains(seen, "\ncreate_main_cluster = false\n") {
		t.Errorf("the package postgresql saw createcluster.conf as\n%s\nwant create_main_cluster = false", seen)
	}
	if policy := d.read("policy"); policy != "#!/bin/sh\nexit 101\n" {
		t.Errorf("while packages were installed, policy-rc.d was\n%s\nwant one that forbids services", policy)
	}
	d.checkConf(t, shippedConf)
	for _, want := range []string{"no Postgres server on this machine", "Installed: postgresql-common postgresql"} {
		if !strings.Contains(d.tell.String(), want) {
			t.Errorf("the user does not read %q:\n%s", want, d.tell.String())
		}
	}
}

// Ctrl-C in a terminal reaches the process group in front, and ends the context.
func TestCtrlCWhilePackagesAreInstalledLetsThemBeInstalled(t *testing.T) {
	d := newDebian(t, `case "$*" in
*postgresql-common) trap 'echo killed >killed; exit 1' INT TERM HUP; touch begun; while [ ! -e go ]; do sleep 0.02; done ;;
esac
`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- d.install(ctx) }()
	await.Within(t, time.Minute, "apt-get is at work", func() bool { return d.has("begun") })
	cancel()
	d.write(t, "go", "")
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v, want %v", err, context.Canceled)
	}
	if d.has("killed") || !d.has("installed") {
		t.Error("apt-get was interrupted")
	}
	d.checkConf(t, shippedConf)
	ours, err := syscall.Getpgid(0)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(strings.Fields(d.read("groups")), strconv.Itoa(ours)) {
		t.Error("apt-get is in the process group of this program: Ctrl-C would reach it")
	}
}

// The setting is that of an administrator.
func TestAFailedInstallationPutsTheSettingBack(t *testing.T) {
	d := newDebian(t, `case "$*" in *postgresql) rm installed; echo 'E: dpkg has failed'; exit 100 ;; esac
`)
	const own = "create_main_cluster = true\ndata_directory = '/mnt/%v'\n"
	d.write(t, "createcluster.conf", own)
	err := d.install(t.Context())
	if err == nil || !strings.Contains(err.Error(), "E: dpkg has failed") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error is %v, want apt-get's last line, in one line", err)
	}
	d.checkConf(t, own)
}
