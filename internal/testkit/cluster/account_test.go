package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A folder that the server's account cannot use is replaced by one that it
// can, the same each time. For root that is a folder below one that is root's
// alone, as a home is; for others, a folder below one that they cannot write.
func TestPlaceFallsBack(t *testing.T) {
	t.Setenv("TMPDIR", usableDir(t))
	closed := filepath.Join(t.TempDir(), "closed")
	mode := os.FileMode(0o700)
	if os.Geteuid() != 0 {
		mode = 0o500
	}
	if err := os.Mkdir(closed, mode); err != nil {
		t.Fatal(err)
	}
	var first string
	for range 2 {
		var c Cluster
		if err := c.place(filepath.Join(closed, "cluster")); err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(c.dir) != os.TempDir() || !c.account.canUse(c.dir) {
			t.Fatalf("settled on %s, want a folder in %s that %s can use", c.dir, os.TempDir(), c.account.name)
		}
		if first == "" {
			first = c.dir
		}
		if c.dir != first {
			t.Errorf("settled on %s, and on %s before", c.dir, first)
		}
		if info, err := os.Stat(c.dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v, want nobody else to be let in", c.dir, info.Mode(), err)
		}
		if exists(filepath.Join(closed, "cluster")) {
			t.Error("the folder that cannot be used is left behind")
		}
	}
	var other Cluster
	if err := other.place(filepath.Join(closed, "other")); err != nil {
		t.Fatal(err)
	}
	if other.dir == first {
		t.Errorf("two folders are replaced by the same %s", first)
	}
}

func TestTakeRefusesWhatIsNotAFolderOfOurs(t *testing.T) {
	dir := usableDir(t)
	a, err := serverAccount("")
	if err != nil {
		t.Fatal(err)
	}
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		if err := a.take(path); err == nil || !strings.Contains(err.Error(), "is not a folder") {
			t.Errorf("take(%s): %v, want an error that it is not a folder", path, err)
		}
	}
	// The system's own temporary folder is root's, and everybody's to write.
	if uid, _, _ := owner("/"); uid != os.Geteuid() {
		if err := a.take("/"); err == nil {
			t.Error("take(/): no error, want one that it belongs to somebody else")
		}
	}
}

func TestTheAccountIsTheDataFoldersOwner(t *testing.T) {
	a, err := serverAccount("")
	if err != nil {
		t.Fatal(err)
	}
	if a.uid == 0 || a.other != (os.Geteuid() == 0) {
		t.Fatalf("the account is %+v, want one that is not root, and another one just where this process is root", a)
	}
	if os.Geteuid() != 0 {
		return // only root can hand the server to an account
	}
	dir := usableDir(t)
	if err := os.Chown(dir, 4321, 4322); err != nil {
		t.Fatal(err)
	}
	a, err = serverAccount(dir)
	if err != nil {
		t.Fatal(err)
	}
	if a.uid != 4321 || a.gid != 4322 {
		t.Errorf("the account is %+v, want the owner of the data, uid 4321 and gid 4322", a)
	}
}

func TestSocketsHaveAShortPath(t *testing.T) {
	long := filepath.Join(usableDir(t), strings.Repeat("long", 30))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	a, err := serverAccount("")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.give(long); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	dir, err := a.temporaryFolder("pgrl-s-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if filepath.Dir(dir) != "/tmp" {
		t.Errorf("the folder is %s, want one in /tmp", dir)
	}
	if left, err := os.ReadDir(long); err != nil || len(left) > 0 {
		t.Errorf("left behind in the long folder: %v, %v", left, err)
	}
}
