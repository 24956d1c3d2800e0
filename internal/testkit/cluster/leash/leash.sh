trap '' INT TERM HUP QUIT PIPE
sig=$1; shift
pid=
while read -r line; do
	if [ "$line" = end ]; then exit 0; fi
	pid=$line
done
cd /
runs() {
	kill -0 "$pid" || return 1
	if [ -r "/proc/$pid/stat" ] && read -r stat <"/proc/$pid/stat"; then
		case $stat in *") Z "*) return 1 ;; esac
	fi
}
gone() {
	i=0
	while runs; do
		[ "$i" -lt 200 ] || return 1
		sleep 0.05
		i=$((i + 1))
	done
}
if [ -n "$pid" ]; then
	kill -CONT "$pid"
	kill -"$sig" "$pid"
	gone || { kill -QUIT "$pid"; gone; } || kill -KILL "$pid"
fi
for folder in "$@"; do
	rm -rf -- "$folder" || { sleep 1; rm -rf -- "$folder"; } || { sleep 5; rm -rf -- "$folder"; }
done
