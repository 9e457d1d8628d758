#!/bin/bash
# Prepares the throw-away machine of rxe-vm.sh: installs QEMU and the RDMA user space, unpacks a Debian kernel with its
# modules into the cache, and builds a small initrd that loads soft-RoCE. Only what is missing is done, so a second run
# takes a moment. Exit status 3 and a line on stderr when this host cannot have it.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${MOONCAKE_CACHE:-$PWD/.cache}/rxe-vm
export PATH=$PATH:/usr/sbin:/sbin

cannot() {
	echo "rdma: no soft-RoCE machine on this host: $*" >&2
	exit 3
}

[ "$(uname -m)" = x86_64 ] || cannot "it is x86-64 only, this is $(uname -m)"

# --- Debian packages -------------------------------------------------------------------------

packages=()
command_of() { command -v "$1" >/dev/null || packages+=("$2"); }
file_of() { [ -e "$1" ] || packages+=("$2"); }
command_of qemu-system-x86_64 qemu-system-x86
command_of cpio cpio
command_of modprobe kmod
command_of rdma iproute2
command_of ibv_devinfo ibverbs-utils
command_of ib_write_bw perftest
file_of /etc/libibverbs.d/rxe.driver ibverbs-providers
# The shell of the initrd must not need libraries.
if ! busybox=$(command -v busybox) || ldd "$busybox" >/dev/null 2>&1; then
	packages+=(busybox-static)
fi

sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { "$@" >"$log" 2>&1; }
updated=
update() {
	[ -z "$updated" ] || return 0
	quietly "${sudo[@]}" apt-get -q -o Acquire::Retries=3 update || true # an old index may do
	updated=1
}

if [ ${#packages[@]} -gt 0 ]; then
	command -v apt-get >/dev/null || cannot "no apt-get; install by hand: ${packages[*]}"
	echo "setup: installing ${packages[*]}"
	update
	quietly "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 \
		install -y --no-install-recommends "${packages[@]}" || {
		tail -n 20 "$log" >&2
		cannot "apt-get could not install ${packages[*]} (see above)"
	}
fi

# --- The kernel ------------------------------------------------------------------------------

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # two at once would unpack into one folder
if ! [ -e "$cache/kernel/.complete" ]; then
	command -v apt-get >/dev/null || cannot "no apt-get to fetch a kernel with"
	newest() { apt-cache depends linux-image-amd64 2>/dev/null | grep -oE 'linux-image-[0-9.]+(\+deb[0-9]+)?-[0-9]+-amd64' | head -1; }
	fetch() (
		rm -rf "$cache/kernel"
		mkdir -p "$cache/kernel/deb"
		cd "$cache/kernel/deb"
		quietly apt-get -q -o Acquire::Retries=3 -o APT::Sandbox::User=root download "$1"
	)
	image=$(newest || true)
	echo "setup: fetching ${image:-a Debian kernel} for the soft-RoCE machine"
	if [ -z "$image" ] || ! fetch "$image"; then # an index that is too old names a version that is gone
		update
		image=$(newest || true)
		[ -n "$image" ] || cannot "no linux-image-amd64 in the package index"
		fetch "$image" || {
			tail -n 20 "$log" >&2
			cannot "apt-get could not download $image (see above)"
		}
	fi
	dpkg -x "$cache"/kernel/deb/*.deb "$cache/kernel"
	rm -rf "$cache/kernel/deb"
	depmod -b "$cache/kernel" "${image#linux-image-}"
	echo "${image#linux-image-}" >"$cache/kernel/.complete"
fi
version=$(cat "$cache/kernel/.complete")
ln -sfn "kernel/boot/vmlinuz-$version" "$cache/vmlinuz"

# --- The initrd ------------------------------------------------------------------------------

sum=$(cat scripts/setup-rdma.sh "$cache/kernel/.complete" | sha256sum | cut -c1-16)
[ "$(cat "$cache/initrd.sum" 2>/dev/null)" != "$sum" ] || exit 0

root=$(mktemp -d)
trap 'rm -rf "$log" "$root"' EXIT
mkdir -p "$root"/{bin,proc,sys,dev,mods,rw}
cp "$(command -v busybox)" "$root/bin/busybox"
for a in sh mount insmod ip mkdir chroot cat echo hostname poweroff sync; do ln -s busybox "$root/bin/$a"; done
# In the order in which they must be loaded. rdma_rxe needs crc32_generic when a link is added, and does not say so.
n=0
for m in virtio_pci 9pnet_virtio 9p overlay crc32_generic crc32c_generic ib_uverbs rdma_ucm rdma_rxe dummy; do
	while read -r what file _; do
		[ "$what" = insmod ] || continue
		compgen -G "$root/mods/*-${file##*/}" >/dev/null && continue
		cp "$file" "$root/mods/$(printf %03d "$n")-${file##*/}"
		n=$((n + 1))
	done < <(modprobe -d "$cache/kernel" -S "$version" --show-depends "$m" 2>/dev/null)
done
compgen -G "$root/mods/*-rdma_rxe.ko*" >/dev/null || cannot "the kernel $version has no rdma_rxe"

# What the machine does: the host's files read-only under a layer in memory, soft-RoCE on dummy network devices, then
# the command that rxe-vm.sh left in the shared folder. The addresses are of the ranges for documentation.
cat >"$root/init" <<'INIT'
#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in /mods/*; do insmod $m || echo "rxe-vm: cannot load ${m##*/}"; done
mount -t tmpfs -o size=60% rw /rw
mkdir -p /rw/up /rw/work /rw/new /rw/ro
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /rw/ro || echo "rxe-vm: cannot mount the host's files"
mount -t overlay -o lowerdir=/rw/ro,upperdir=/rw/up,workdir=/rw/work overlay /rw/new
N=/rw/new
for d in proc sys dev tmp out run; do mkdir -p $N/$d; done
mount -t proc proc $N/proc
mount -t sysfs sys $N/sys
mount -t devtmpfs dev $N/dev
mkdir -p $N/dev/shm $N/dev/pts
mount -t tmpfs shm $N/dev/shm
mount -t devpts pts $N/dev/pts
mount -t tmpfs run $N/run
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288 out $N/out || echo "rxe-vm: cannot mount the folder for results"
hostname rxe-vm
ip link set lo up
devices=$(cat $N/out/.devices)
j=0
for a in 192.0.2.1 198.51.100.1 203.0.113.1 192.0.2.129; do
	[ $j -lt $devices ] || break
	ip link add d$j type dummy
	ip addr add $a/24 dev d$j
	ip link set d$j mtu 9000
	ip link set d$j up
	chroot $N rdma link add rxe$j type rxe netdev d$j || echo "rxe-vm: cannot add rxe$j"
	j=$((j+1))
done
ulimit -l unlimited
ulimit -n 65536
chroot $N /bin/bash /out/.command
echo $? > $N/out/.status
sync
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$cache/initrd.part"
mv "$cache/initrd.part" "$cache/initrd.gz"
echo "$sum" >"$cache/initrd.sum"
