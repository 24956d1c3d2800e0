package cluster

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
*postgresql) cp createcluster.conf seen; touch installed ;;
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

func (d *debian) look() string {
	if !exists(filepath.Join(d.folder, "installed")) {
		return ""
	}
	return "/there"
}

func (d *debian) install(ctx context.Context) (string, error) {
	return installer{conf: d.conf, tell: &d.tell}.install(ctx, d.look)
}

// checkConf checks that createcluster.conf is as it was.
func (d *debian) checkConf(t *testing.T, want string) {
	t.Helper()
	if got := d.read("createcluster.conf"); got != want {
		t.Errorf("after the installation createcluster.conf is\n%s\nwant\n%s", got, want)
	}
	if exists(d.conf + ".before") {
		t.Error("the copy of createcluster.conf is left behind")
	}
}

func TestDebiansPackageIsInstalledWithoutItsOwnCluster(t *testing.T) {
	d := newDebian(t, "")
	if dir, err := d.install(t.Context()); err != nil || dir != "/there" {
		t.Fatalf("%s, %v, want /there; the user reads\n%s", dir, err, d.tell.String())
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
	d.checkConf(t, shippedConf)
	for _, want := range []string{"no Postgres server on this machine", "is installed"} {
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
	go func() {
		_, err := d.install(ctx)
		ended <- err
	}()
	awaitFile(t, filepath.Join(d.folder, "begun"))
	cancel()
	d.write(t, "go", "")
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v, want %v", err, context.Canceled)
	}
	if d.read("killed") != "" || d.look() == "" {
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
	_, err := d.install(t.Context())
	if !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), "E: dpkg has failed") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error is %v, want what to do and apt-get's last line, in one line", err)
	}
	d.checkConf(t, own)
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !exists(path); time.Sleep(pollEvery) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not appear", path)
		}
	}
}
